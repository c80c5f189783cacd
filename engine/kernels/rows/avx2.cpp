#include "../simd/avx2.h"
#include "kernel.h"

const RowFunctions ROWS_AVX2 = ROW_FUNCTIONS<Avx2>;
