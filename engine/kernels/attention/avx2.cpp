#include "../simd/avx2.h"
#include "many_rows.h"

const AttentionFunctions ATTENTION_AVX2 = ATTENTION_FUNCTIONS<Avx2>;
