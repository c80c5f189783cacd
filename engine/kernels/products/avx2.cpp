#include "../simd/avx2.h"
#include "kernel.h"

namespace {

struct Avx2Products : Avx2 {
    using Floats = Vector;
    using Ints = __m256i;
    static constexpr int ROWS = 4;  // as many sums as registers hold
    static constexpr int OFFSET_OF_SIGNED = 0;

    using Avx2::all;
    static Ints all(int x) { return _mm256_set1_epi32(x); }
    static Floats minus_product(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
    static Floats floats(Ints x) { return _mm256_cvtepi32_ps(x); }
    static Floats halves(const uint8_t * from) { return F16::load(reinterpret_cast<const char *>(from), 0); }
    static Floats unsigned_bytes(const uint8_t * from) {
        return floats(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from))));
    }
    static Floats signed_bytes(const uint8_t * from) {
        return floats(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from))));
    }

    static Ints bytes(const uint8_t * from) { return _mm256_loadu_si256(reinterpret_cast<const Ints *>(from)); }
    static Ints either(Ints a, Ints b) { return _mm256_or_si256(a, b); }
    static Ints low_nibbles(Ints x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
    static Ints high_nibbles(Ints x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
    static Ints bits_4_and_5(Ints x) { return _mm256_and_si256(x, _mm256_set1_epi8(48)); }
    static Ints times_16(Ints x) { return _mm256_slli_epi16(x, 4); }
    static Ints times_4(Ints x) { return _mm256_slli_epi16(x, 2); }
    static Ints quarter(Ints x) { return _mm256_srli_epi16(x, 2); }
    static Ints plus_16_where(Ints x, const uint8_t * bits) {
        const Ints byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
        const Ints bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
        const Ints here = _mm256_and_si256(_mm256_shuffle_epi8(four(reinterpret_cast<const int8_t *>(bits)), byte_of), bit);
        return either(x, _mm256_and_si256(_mm256_cmpeq_epi8(here, bit), _mm256_set1_epi8(16)));
    }

    static Ints four(const int8_t * at) {
        int32_t bytes;
        std::memcpy(&bytes, at, sizeof bytes);
        return all(bytes);
    }
    // Pairs fit in 16 bits: codes are below 64, or their absolute values at most 128.
    static Ints add_products(Ints sum, Ints codes, const int8_t * with) { return add_pairs(sum, _mm256_maddubs_epi16(codes, four(with))); }
    static Ints add_signed_products(Ints sum, Ints codes, const int8_t * with) {
        return add_pairs(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(four(with), codes)));
    }
    static Ints add_pairs(Ints sum, Ints pairs) { return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))); }

    static float largest_of_32(const float * x) {  // NaN above all: as integers they have this order
        Ints most = _mm256_setzero_si256();
        for (int i = 0; i < 32; i += 8)
            most = _mm256_max_epi32(most, _mm256_and_si256(bytes(reinterpret_cast<const uint8_t *>(x + i)), all(INT32_MAX)));
        __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
        half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1));
        return _mm_cvtss_f32(_mm_castsi128_ps(half));
    }
    static void round_32(const float * x, float factor, bool finite, int8_t * to, int32_t * half_sums) {
        for (int half = 0; half < 2; half++) {
            Ints parts[2];
            for (int i = 0; i < 2; i++)
                parts[i] = finite ? _mm256_cvtps_epi32(multiply(_mm256_loadu_ps(x + 16 * half + 8 * i), all(factor))) : _mm256_setzero_si256();
            const Ints words = _mm256_permute4x64_epi64(_mm256_packs_epi32(parts[0], parts[1]), 0xD8);
            const __m128i rounded = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
            _mm_storeu_si128(reinterpret_cast<__m128i *>(to + 16 * half), rounded);
            half_sums[half] = 0;
            for (int i = 0; i < 16; i++) half_sums[half] += to[16 * half + i];
        }
    }
};

}  // namespace

const ProductFunctions PRODUCTS_AVX2 = PRODUCT_FUNCTIONS<Avx2Products>;
