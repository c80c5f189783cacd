#include "../simd/avx512.h"
#include "kernel.h"

namespace {

struct Avx512Products : Avx512 {
    using Floats = Vector;
    using Ints = __m512i;
    static constexpr int ROWS = 8;  // as many sums as registers hold
    static constexpr int OFFSET_OF_SIGNED = -128;

    using Avx512::all;
    static Ints all(int x) { return _mm512_set1_epi32(x); }
    static Floats minus_product(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
    static Floats floats(Ints x) { return _mm512_cvtepi32_ps(x); }
    static Floats halves(const uint8_t * from) { return F16::load(reinterpret_cast<const char *>(from), 0); }
    static Floats unsigned_bytes(const uint8_t * from) {
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))));
    }
    static Floats signed_bytes(const uint8_t * from) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))));
    }

    static Ints bytes(const uint8_t * from) { return _mm512_loadu_si512(from); }
    static Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
    static Ints low_nibbles(Ints x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
    static Ints high_nibbles(Ints x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
    static Ints bits_4_and_5(Ints x) { return _mm512_and_si512(x, _mm512_set1_epi8(48)); }
    static Ints times_16(Ints x) { return _mm512_slli_epi16(x, 4); }
    static Ints times_4(Ints x) { return _mm512_slli_epi16(x, 2); }
    static Ints quarter(Ints x) { return _mm512_srli_epi16(x, 2); }
    static Ints plus_16_where(Ints x, const uint8_t * bits) {
        uint64_t where;
        std::memcpy(&where, bits, sizeof where);
        return _mm512_mask_add_epi8(x, where, x, _mm512_set1_epi8(16));
    }

    // with: 4 bytes, for all outputs. The intrinsic would load them by an instruction of their own.
    static Ints add_products(Ints sum, Ints codes, const int8_t * with) {
        asm("vpdpbusd %1%{1to16%}, %2, %0" : "+v"(sum) : "m"(*reinterpret_cast<const int32_t *>(with)), "v"(codes));
        return sum;
    }
    static Ints add_signed_products(Ints sum, Ints codes, const int8_t * with) {
        return add_products(sum, _mm512_xor_si512(codes, _mm512_set1_epi8(-128)), with);
    }

    static float largest_of_32(const float * x) {  // NaN above all: as integers they have this order
        const Ints sign = _mm512_set1_epi32(INT32_MAX);
        const Ints a = _mm512_and_si512(_mm512_loadu_si512(x), sign), b = _mm512_and_si512(_mm512_loadu_si512(x + 16), sign);
        return _mm512_cvtss_f32(_mm512_castsi512_ps(_mm512_set1_epi32(_mm512_reduce_max_epi32(_mm512_max_epi32(a, b)))));
    }
    static void round_32(const float * x, float factor, bool finite, int8_t * to, int32_t * half_sums) {
        for (int half = 0; half < 2; half++) {
            const Floats scaled = multiply(_mm512_maskz_loadu_ps(finite ? 0xFFFF : 0, x + 16 * half), all(factor));
            const Ints rounded = _mm512_cvtps_epi32(scaled);
            _mm_storeu_si128(reinterpret_cast<__m128i *>(to + 16 * half), _mm512_cvtsepi32_epi8(rounded));
            half_sums[half] = _mm512_reduce_add_epi32(rounded);
        }
    }
};

}  // namespace

const ProductFunctions PRODUCTS_AVX512 = PRODUCT_FUNCTIONS<Avx512Products>;
