// How many threads CPU kernels use. Physical cores are the default.
#pragma once

namespace ebb {

int physical_cores();
int threads();
void set_threads(int count);  // at least 1

}  // namespace ebb
