// Operations that take a row of numbers by itself.
#pragma once

#include <cstdint>

// One for each instruction set. x and out may be the same.
struct RowFunctions {
    void (*add)(const float * x, const float * y, int64_t count, float * out);
    void (*multiply)(const float * x, const float * y, int64_t count, float * out);
    void (*normalise)(const float * x, float epsilon, int64_t count, float * out);  // by root mean square (arXiv:1910.07467)
    void (*gate)(const float * x, const float * y, int64_t count, float * out);     // SwiGLU (arXiv:2002.05202): silu(x) y
    // RoPE (arXiv:2104.09864). Number i is paired with i + distance: its neighbour, or that in the other half.
    void (*rotate)(const float * x, const float * cosines, const float * sines, int pairs, int distance, float * out);
    void (*to_f16)(const float * x, int64_t count, uint16_t * out);
    void (*to_bf16)(const float * x, int64_t count, uint16_t * out);
};

constexpr int MOST_ROTATED = 1024;  // numbers

extern const RowFunctions ROWS_AVX2, ROWS_AVX512;
