// Makes numbers.f32, and what ggml's reference quantizer makes of them (llama.cpp 8733e0cf, without contraction of products and sums):
//   gcc -O2 -ffp-contract=off -c -I$GGML/src -I$GGML/include $GGML/src/ggml-quants.c
//   gcc -O2 -I$GGML/src -I$GGML/include make_blocks.c ggml-quants.o -lm && ./a.out
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ggml-quants.h"

enum { blocks = 24, elems = 256 };

static float drawn(uint32_t* state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)((int32_t)(*state >> 8) - (1 << 23)) * 0x1p-23f;
}

// Blocks of many sizes, most numbers of which are small; the last six are odd: zeros, one number, negative ones, one group far above the others,
// an outlier, and hardly anything.
static float number(int block, int i, float value) {
  switch (block) {
    case 18: return 0;
    case 19: return 0.5f;
    case 20: return -fabsf(value) - 0.01f;
    case 21: return i / 32 == 3 ? value : value * 1e-6f;
    case 22: return i == 77 ? -30.0f : value;
    case 23: return value * 1e-20f;
    default: return value;
  }
}

static void save(const char* path, const void* data, size_t bytes) {
  FILE* const file = fopen(path, "wb");
  fwrite(data, 1, bytes, file);
  fclose(file);
}

int main(void) {
  static float x[blocks * elems];
  static block_q8_0 q8_0[blocks * elems / QK8_0];
  static block_q6_K q6_K[blocks];
  static block_q4_K q4_K[blocks];
  uint32_t state = 12345;
  for (int block = 0; block < blocks; ++block) {
    for (int i = 0; i < elems; ++i) {
      const float u = drawn(&state), v = drawn(&state);
      x[block * elems + i] = number(block, i, (u * u * u + 0.25f * v) * ldexpf(1.0f, -(block % 5) * 3) * 0.05f);
    }
  }
  quantize_row_q8_0_ref(x, q8_0, blocks * elems);
  quantize_row_q6_K_ref(x, q6_K, blocks * elems);
  quantize_row_q4_K_ref(x, q4_K, blocks * elems);
  save("numbers.f32", x, sizeof x);
  save("q8_0.bin", q8_0, sizeof q8_0);
  save("q6_K.bin", q6_K, sizeof q6_K);
  save("q4_K.bin", q4_K, sizeof q4_K);
  return 0;
}

// Of ggml, what the quantizer is linked with.
float ggml_table_f32_f16[1 << 16];
__attribute__((constructor)) static void fill_table(void) {
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float value = exponent == 0    ? ldexpf((float)fraction, -24)
                        : exponent == 31 ? INFINITY
                                         : ldexpf((float)(1024 + fraction), exponent - 25);
    ggml_table_f32_f16[bits] = bits & 0x8000 ? -value : value;
  }
}
void ggml_abort(const char* file, int line, const char* format, ...) { abort(); }
size_t ggml_row_size(enum ggml_type type, int64_t count) { abort(); }
size_t ggml_type_size(enum ggml_type type) { abort(); }
const char* ggml_type_name(enum ggml_type type) { abort(); }
