// The one place that knows whether this build has CUDA kernels. An op's record names its kernel as
//
//   .cuda = EBB_CUDA_KERNEL(bind_softmax_cuda),
//
// which is null in a build without CUDA, where the function does not exist.
#pragma once

#ifdef EBB_HAS_CUDA
#define EBB_CUDA_KERNEL(...) __VA_ARGS__
#else
#define EBB_CUDA_KERNEL(...) nullptr
#endif
