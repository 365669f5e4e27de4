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

cd "$work" # nothing of the source tree may be found by accident
# shellcheck disable=SC2046
c++ -std=c++20 -Wall -Wextra -Wno-stringop-overflow -O1 "$here/consumer/main.cpp" -o consumer $(ask --cflags --libs)
LD_LIBRARY_PATH=$lib ./consumer
# shellcheck disable=SC2046
c++ -std=c++20 -O1 "$here/consumer/main.cpp" -o consumer_static $(ask --cflags) "$lib/libzshard.a" $(ask --static --libs | sed "s/-lzshard//")
./consumer_static
"$prefix/bin/train" --version

# The example of the documentation: one rank and two, which see the same samples first and must learn them.
[ "$(wc -l <"$here/../../docs/examples/custom_trainer.cpp")" -le 60 ] || { echo 'the example has more than 60 lines' >&2; exit 1; }
# shellcheck disable=SC2046
c++ -std=c++20 -Wall -Wextra -Wno-stringop-overflow -O2 "$here/../../docs/examples/custom_trainer.cpp" -o custom_trainer $(ask --cflags --libs)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for ranks in 1 2; do
  launcher=
  [ "$ranks" = 1 ] || launcher="mpirun -q --oversubscribe -np $ranks"
  LD_LIBRARY_PATH=$lib $launcher ./custom_trainer | tee example.log
  awk -v ranks="$ranks" '{ last[$2] = $NF; if (!($2 in first)) first[$2] = $NF; lines++ }
    END { for (r in first) if (last[r] > first[r] / 4) exit 1; exit lines == 4 * ranks ? 0 : 1 }' example.log ||
    { echo "the example does not learn on $ranks ranks" >&2; exit 1; }
done

# The other example: points that it has not seen are told apart, with one rank and two.
[ "$(wc -l <"$here/../../docs/examples/mlp_classifier.cpp")" -le 60 ] || { echo 'the example has more than 60 lines' >&2; exit 1; }
# shellcheck disable=SC2046
c++ -std=c++20 -Wall -Wextra -Wno-stringop-overflow -O2 "$here/../../docs/examples/mlp_classifier.cpp" -o mlp_classifier $(ask --cflags --libs)
for ranks in 1 2; do
  launcher=
  [ "$ranks" = 1 ] || launcher="mpirun -q --oversubscribe -np $ranks"
  LD_LIBRARY_PATH=$lib $launcher ./mlp_classifier | tee example.log
  awk -v ranks="$ranks" '$5 < 95 { exit 1 } { lines++ } END { exit lines == ranks ? 0 : 1 }' example.log ||
    { echo "the classifier does not learn on $ranks ranks" >&2; exit 1; }
done
