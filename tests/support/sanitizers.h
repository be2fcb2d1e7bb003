// Whether this build runs under a sanitizer that watches memory or threads. Such a sanitizer makes
// it many times slower and replaces some system calls.
#pragma once

namespace ebb::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace ebb::test
