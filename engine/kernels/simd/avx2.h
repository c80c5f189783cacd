#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace {

struct Avx2 {
    using Vector = __m256;
    static constexpr int WIDTH = 8;
    static constexpr int CELLS = 2;  // of dot products, and
    static constexpr int STEPS = 2;  // of values: as many sums as registers hold, and hide their latency
    static constexpr int ROWS = 2;   // of tiles
    static constexpr uint64_t EVERY = 0xFF;

    static Vector all(float x) { return _mm256_set1_ps(x); }
    static Vector load(const float * from) { return _mm256_loadu_ps(from); }
    static void store(float * to, Vector x) { _mm256_storeu_ps(to, x); }
    static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
    static Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
    static Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
    static Vector divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
    static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
    static Vector larger(Vector a, Vector b) { return _mm256_max_ps(a, b); }  // b if one is NaN
    static Vector rounded(Vector x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Vector times_power_of_2(Vector x, Vector n) {
        const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return multiply(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
    }
    static Vector absolute(Vector x) { return _mm256_andnot_ps(all(-0.0f), x); }
    static Vector with_sign_of(Vector x, Vector sign) {
        return _mm256_or_ps(absolute(x), _mm256_and_ps(all(-0.0f), sign));
    }
    static Vector select(uint64_t bits, Vector a, Vector b) {
        const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        const __m256i set = _mm256_and_si256(_mm256_set1_epi32(int(bits)), each);
        return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, each)));
    }
    static uint64_t above_minus_infinity(Vector x) {
        return uint64_t(_mm256_movemask_ps(_mm256_cmp_ps(x, all(-INFINITY), _CMP_NEQ_UQ)));
    }
    static uint64_t negative(Vector x) { return uint64_t(_mm256_movemask_ps(x)); }
    static float largest(Vector x) {
        __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        half = _mm_max_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
    }
    static float sum(Vector x) {
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    }
    static float first(Vector x) { return _mm256_cvtss_f32(x); }
    static Vector some_half(const char * from, int count) {
        alignas(16) char halves[2 * WIDTH] = {};
        std::memcpy(halves, from, 2 * count);
        return F16::load(halves, 0);
    }

    // 8 rows of 8 numbers.
    static void transpose(const float * from, int from_row, float * to, int to_row) {
        Vector a[8], b[8];
        for (int i = 0; i < 8; i++) a[i] = load(from + i * from_row);
        for (int i = 0; i < 8; i += 2) b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
        for (int i = 0; i < 8; i += 4)
            for (int j = 0; j < 2; j++) {
                a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
                a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0xEE);
            }
        for (int j = 0; j < 4; j++) {  // column j of each half, of all rows
            store(to + j * to_row, _mm256_permute2f128_ps(a[j], a[j + 4], 0x20));
            store(to + (j + 4) * to_row, _mm256_permute2f128_ps(a[j], a[j + 4], 0x31));
        }
    }

    // Of 8 rows of 8 numbers: pairs of rows, then of pairs, and so on.
    static Vector sums_of_rows(const float * rows) {
        Vector quarters[2];
        for (int i = 0; i < 2; i++) {
            const float * four = rows + 32 * i;
            const Vector a = _mm256_hadd_ps(load(four), load(four + 8)), b = _mm256_hadd_ps(load(four + 16), load(four + 24));
            quarters[i] = _mm256_hadd_ps(a, b);
        }
        return add(_mm256_permute2f128_ps(quarters[0], quarters[1], 0x20), _mm256_permute2f128_ps(quarters[0], quarters[1], 0x31));
    }

    struct F16 {
        static Vector load(const char * cell, int d) {
            return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(cell + 2 * d)));
        }
        static void store(uint16_t * to, Vector x) {
            _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        }
    };
    struct BF16 {
        static Vector load(const char * cell, int d) {
            const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i *>(cell + 2 * d));
            return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
        }
    };
    struct Q8_0 {  // blocks of an F16 scale and 32 bytes
        static Vector load(const char * cell, int d) {
            const char * block = cell + d / 32 * 34;
            uint16_t scale;
            std::memcpy(&scale, block, 2);
            const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(block + 2 + d % 32));
            return multiply(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), all(_cvtsh_ss(scale)));
        }
    };
};

}  // namespace
