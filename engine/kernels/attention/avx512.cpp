#include "../simd/avx512.h"
#include "many_rows.h"

const AttentionFunctions ATTENTION_AVX512 = ATTENTION_FUNCTIONS<Avx512>;
