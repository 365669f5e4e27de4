#!/bin/sh
# Installs a finished build into a folder of its own and builds and runs consumer/main.cpp against what is there, the way a
# custom trainer would: the shared library, then the static one. Usage: installed_library.sh BUILD_DIR WORK_DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
work=$2

DESTDIR=$work/install meson install -C "$build" --no-rebuild --quiet
pc=$(find "$work/install" -name zshard.pc)
[ -n "$pc" ] || { echo 'zshard.pc is not installed' >&2; exit 1; }
prefix=$work/install$(PKG_CONFIG_PATH=${pc%/*} pkg-config --variable=prefix zshard)
ask() { PKG_CONFIG_PATH=${pc%/*} pkg-config --define-variable=prefix="$prefix" "$@" zshard; }
lib=$(ask --variable=libdir)
modules=$(ask --print-requires --print-requires-private | tr '\n' ' ')
[ "$modules" = 'fmt ' ] || { echo "zshard.pc wants other modules than the headers include: $modules" >&2; exit 1; }

# The public headers, each by itself, and nothing else but what they include.
include=$(ask --variable=includedir)/zshard
[ "$(find "$include" -mindepth 1 -maxdepth 1 ! -name '*.h' -printf '%f')" = detail ] || { ls "$include" >&2; exit 1; }
for header in "$include"/*.h; do
  # shellcheck disable=SC2046
  echo "#include <zshard/${header##*/}>" | c++ -x c++ -std=c++20 -fsyntax-only $(ask --cflags) -
done

cd "$work" # nothing of the source tree may be found by accident
# shellcheck disable=SC2046
c++ -std=c++20 -Wall -Wextra -Wshadow -Werror -Wno-stringop-overflow -O1 "$here/consumer/main.cpp" -o consumer $(ask --cflags --libs)
LD_LIBRARY_PATH=$lib ./consumer
# shellcheck disable=SC2046
c++ -std=c++20 -O1 "$here/consumer/main.cpp" -o consumer_static $(ask --cflags) "$lib/libzshard.a" $(ask --static --libs | sed "s/-lzshard//")
./consumer_static
"$prefix/bin/zshard" --version

# The shared library exports names of zs alone, with the version of their ABI, which a program asks for when it starts.
abi=ZSHARD_$(ask --modversion | cut -d. -f1,2)
foreign=$(nm -DC --defined-only --with-symbol-versions "$lib/libzshard.so" | cut -d' ' -f3- | grep -vx "$abi" |
  grep -Ev "^((vtable|VTT|typeinfo|typeinfo name|guard variable) for |(non-)?virtual thunk to )?zs::.*@@$abi\$" || true)
[ -z "$foreign" ] || { echo "libzshard.so exports what is not its own, or without its version $abi:" >&2; echo "$foreign" | head -5 >&2; exit 1; }
readelf -W --version-info consumer | grep -q "Name: $abi " || { echo "a program does not ask for $abi" >&2; exit 1; }
code=0
python3 "$here/abi_test.py" "$here/../.." "${include%/zshard}" "$lib/libzshard.so" || code=$?
[ "$code" = 0 ] || [ "$code" = 77 ] || exit 1

# The same by CMake.
if command -v cmake >/dev/null; then
  mkdir -p cmake
  cat >cmake/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.20)
project(consumer CXX)
find_package(zshard 0.1 REQUIRED)
add_executable(shows_version main.cpp)
target_link_libraries(shows_version zshard::zshard)
END
  printf '#include <zshard/version.h>\n#include <cstdio>\nint main() { std::printf("zshard %%s\\n", zs::version()); }\n' >cmake/main.cpp
  cmake -S cmake -B cmake/build "-DCMAKE_PREFIX_PATH=$prefix" >cmake.log && cmake --build cmake/build >>cmake.log || { cat cmake.log >&2; exit 1; }
  LD_LIBRARY_PATH=$lib cmake/build/shows_version
fi

# The examples of the documentation, with one rank and two. build_example EXAMPLE [LINES]: it has at most so many. expect EXAMPLE RANKS LINES AWK-CONDITION [ARGUMENT...]: it prints so many lines, and none of them meets
# the condition, of a wrong answer.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
build_example() {
  [ "$(wc -l <"$here/../../docs/examples/$1.cpp")" -le "${2:-60}" ] || { echo "the example $1 has more than ${2:-60} lines" >&2; exit 1; }
  # shellcheck disable=SC2046
  c++ -std=c++20 -Wall -Wextra -Wno-stringop-overflow -O2 "$here/../../docs/examples/$1.cpp" -o "$1" $(ask --cflags --libs)
}
expect() {
  example=$1 ranks=$2 lines=$3 wrong=$4 launcher=
  shift 4
  [ "$ranks" = 1 ] || launcher="mpirun -q --oversubscribe -np $ranks"
  LD_LIBRARY_PATH=$lib $launcher "./$example" "$@" | tee example.log
  awk -v lines="$lines" "$wrong"' { exit wrong = 1 } { seen++ } END { exit wrong || seen != lines }' example.log ||
    { echo "the example $example does not learn on $ranks ranks" >&2; exit 1; }
}
for example in custom_trainer mlp_classifier fine_tune conv_net lstm two_models custom_op own_optimizer language_model; do build_example "$example"; done
build_example vision_transformer 70
# As a user compiles an op of single elements for GPUs.
if command -v nvcc >/dev/null; then
  # shellcheck disable=SC2046
  nvcc -std=c++20 --extended-lambda --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1 -x cu $(ask --cflags) -c "$here/../../docs/examples/custom_op.cpp" -o custom_op_for_gpus.o
fi
for ranks in 1 2; do
  expect custom_trainer "$ranks" $((4 * ranks)) '/step 1:/ && $NF < 2 || /step 100:/ && $NF > 0.8'
  expect mlp_classifier "$ranks" "$ranks" '$5 < 95'
  expect fine_tune "$ranks" $((2 + ranks)) '$1 == "rank" && $NF > 0.06 || /left/ && !/ out[.]/' mlp.safetensors
  expect conv_net "$ranks" "$ranks" '$3 < 90'
  expect custom_op "$ranks" "$ranks" '$NF > 0.1'
  expect own_optimizer "$ranks" $((2 * ranks)) '/step 1:/ && $NF < 0.6 || /step 200:/ && $NF > 0.4'
  expect vision_transformer "$ranks" "$ranks" '$3 < 80'
  expect language_model "$ranks" 1 '$NF > 3.8' "$here/../../docs/trainer.md" "$here/../../docs/sharding.md" "$here/../../docs/memory.md"
  rm -rf lstm-checkpoints
  expect lstm "$ranks" $((2 * ranks)) '/step 1:/ && $NF < 4 || /step 80:/ && $NF > 1.2'
  [ -d lstm-checkpoints/step-80 ] || { echo 'the LSTM was not saved' >&2; exit 1; }
  expect two_models "$ranks" $((2 * ranks)) '/step 1500:/ && $5 > 0.35'
done

# The program of the tutorial, from its page: two ranks, then one that goes on from what they have saved.
sed -n '/^```cpp$/,/^```$/{/^```/!p}' "$here/../../docs/tutorial.md" >gpt.cpp
# shellcheck disable=SC2046
c++ -std=c++20 -Wall -Wextra -Wno-stringop-overflow -O2 gpt.cpp -o gpt $(ask --cflags --libs)
rm -rf gpt-checkpoints
LD_LIBRARY_PATH=$lib mpirun -q --oversubscribe -np 2 ./gpt | tee example.log
LD_LIBRARY_PATH=$lib ./gpt gpt-checkpoints/step-40 | tee -a example.log
awk '/step 1:/ && $NF < 4 || /step 40:/ && $NF > 3 || /step (41|80):/ && $NF > 2.9 { exit wrong = 1 } { seen++ } END { exit wrong || seen != 6 }' example.log ||
  { echo 'the program of the tutorial does not learn, or does not go on' >&2; exit 1; }

# The study of the second tutorial: its program with two ranks, and its plot where the Python module was built.
page=$here/../../docs/tutorial-research.md
sed -n '/^```cpp$/,/^```$/{/^```/!p}' "$page" >story.cpp
# shellcheck disable=SC2046
c++ -std=c++20 -Wall -Wextra -Wno-stringop-overflow -O2 story.cpp -o story.bin $(ask --cflags --libs)
rm -rf story
LD_LIBRARY_PATH=$lib mpirun -q --oversubscribe -np 2 ./story.bin | tee example.log
awk '/^softmax:/ && $2 < 0.8 || /^decay:/ && $2 > 0.6 { exit wrong = 1 } { seen++ } END { exit wrong || seen != 2 }' example.log ||
  { echo 'the study of the second tutorial comes to something else' >&2; exit 1; }
module=$(find "$prefix" -name '_zshard*.so' -printf '%h\n')
if [ -n "$module" ]; then
  sed -n '/^```python$/,/^```$/{/^```/!p}' "$page" >plot.py
  PYTHONPATH=${module%/zshard} /usr/bin/python3 plot.py | tee example.log
  [ "$(grep -cE '^(softmax|decay): 0[.][0-9]+, keys \(16, 32\) of length [0-9.]+, a moment of \(16, 32\)$' example.log)" = 2 ] &&
    [ "$(/usr/bin/python3 -c 'import re; from xml.dom.minidom import parse; print(*(len(c.getAttribute("points").split()) for c in parse("story/right.svg").getElementsByTagName("polyline")))')" = '20 20' ] ||
    { echo 'the plot of the second tutorial is another' >&2; exit 1; }
fi

# What is wrong ends every rank with one line, and the error's exit code: here the folder of a checkpoint that is there.
code=0
LD_LIBRARY_PATH=$lib mpirun -q --oversubscribe -np 2 ./lstm >/dev/null 2>example.err || code=$?
[ "$code" != 0 ] && [ "$(grep -c '^lstm: error: ' example.err)" = 1 ] ||
  { echo "a second run over the same checkpoint ended with $code and:" >&2; cat example.err >&2; exit 1; }
