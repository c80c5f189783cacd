#include "../simd/avx512.h"
#include "kernel.h"

const RowFunctions ROWS_AVX512 = ROW_FUNCTIONS<Avx512>;
