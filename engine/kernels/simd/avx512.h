#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

namespace {

struct Avx512 {
    using Vector = __m512;
    static constexpr int WIDTH = 16;
    static constexpr int CELLS = 4;  // of dot products, and
    static constexpr int STEPS = 4;  // of values: as many sums as registers hold, and hide their latency
    static constexpr int ROWS = 4;   // of tiles
    static constexpr uint64_t EVERY = 0xFFFF;

    static Vector all(float x) { return _mm512_set1_ps(x); }
    static Vector load(const float * from) { return _mm512_loadu_ps(from); }
    static void store(float * to, Vector x) { _mm512_storeu_ps(to, x); }
    static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
    static Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
    static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
    static Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
    static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
    static Vector larger(Vector a, Vector b) { return _mm512_max_ps(a, b); }  // b if one is NaN
    static Vector rounded(Vector x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Vector times_power_of_2(Vector x, Vector n) { return _mm512_scalef_ps(x, n); }
    static Vector absolute(Vector x) { return _mm512_abs_ps(x); }
    static Vector with_sign_of(Vector x, Vector sign) {
        return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
            _mm512_set1_epi32(INT32_MIN), _mm512_castps_si512(sign), _mm512_castps_si512(x), 0xCA));
    }
    static Vector select(uint64_t bits, Vector a, Vector b) { return _mm512_mask_mov_ps(b, __mmask16(bits), a); }
    static uint64_t above_minus_infinity(Vector x) { return _mm512_cmp_ps_mask(x, all(-INFINITY), _CMP_NEQ_UQ); }
    static uint64_t negative(Vector x) { return _mm512_movepi32_mask(_mm512_castps_si512(x)); }
    static float largest(Vector x) { return _mm512_reduce_max_ps(x); }
    static float sum(Vector x) { return _mm512_reduce_add_ps(x); }
    static float first(Vector x) { return _mm512_cvtss_f32(x); }
    static Vector some_half(const char * from, int count) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(__mmask16((1u << count) - 1), from));
    }

    // 16 rows of 16 numbers.
    static void transpose(const float * from, int from_row, float * to, int to_row) {
        Vector a[16], b[16];
        for (int i = 0; i < 16; i++) a[i] = load(from + i * from_row);
        for (int i = 0; i < 16; i += 2) b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
        for (int i = 0; i < 16; i += 4)
            for (int j = 0; j < 2; j++) {
                a[i + 2 * j] = _mm512_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
                a[i + 2 * j + 1] = _mm512_shuffle_ps(b[i + j], b[i + j + 2], 0xEE);
            }
        for (int j = 0; j < 4; j++) {  // column j of each quarter, of all rows
            const Vector low = _mm512_shuffle_f32x4(a[j], a[j + 4], 0x88), high = _mm512_shuffle_f32x4(a[j], a[j + 4], 0xDD);
            const Vector low2 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x88), high2 = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xDD);
            store(to + j * to_row, _mm512_shuffle_f32x4(low, low2, 0x88));
            store(to + (j + 4) * to_row, _mm512_shuffle_f32x4(high, high2, 0x88));
            store(to + (j + 8) * to_row, _mm512_shuffle_f32x4(low, low2, 0xDD));
            store(to + (j + 12) * to_row, _mm512_shuffle_f32x4(high, high2, 0xDD));
        }
    }

    // Of 16 rows of 16 numbers: pairs of rows, then of pairs, and so on.
    static Vector sums_of_rows(const float * rows) {
        Vector eighths[4];
        for (int i = 0; i < 4; i++) {
            Vector quarters[4];
            for (int j = 0; j < 4; j++) quarters[j] = load(rows + 16 * (4 * i + j));
            const Vector a = add(_mm512_unpacklo_ps(quarters[0], quarters[1]), _mm512_unpackhi_ps(quarters[0], quarters[1]));
            const Vector b = add(_mm512_unpacklo_ps(quarters[2], quarters[3]), _mm512_unpackhi_ps(quarters[2], quarters[3]));
            eighths[i] = add(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
        }
        const Vector a = add(_mm512_shuffle_f32x4(eighths[0], eighths[1], 0x88), _mm512_shuffle_f32x4(eighths[0], eighths[1], 0xDD));
        const Vector b = add(_mm512_shuffle_f32x4(eighths[2], eighths[3], 0x88), _mm512_shuffle_f32x4(eighths[2], eighths[3], 0xDD));
        return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
    }

    struct F16 {
        static Vector load(const char * cell, int d) {
            return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(cell + 2 * d)));
        }
        static void store(uint16_t * to, Vector x) {
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        }
    };
    struct BF16 {
        static Vector load(const char * cell, int d) {
            const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(cell + 2 * d));
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
        }
    };
    struct Q8_0 {  // blocks of an F16 scale and 32 bytes
        static Vector load(const char * cell, int d) {
            const char * block = cell + d / 32 * 34;
            uint16_t scale;
            std::memcpy(&scale, block, 2);
            const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(block + 2 + d % 32));
            return multiply(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), all(_cvtsh_ss(scale)));
        }
    };
};

}  // namespace
