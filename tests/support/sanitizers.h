// Whether this build runs under a sanitizer that watches memory or threads, which makes it many
// times slower and stands in for some calls to the system.
#pragma once

namespace ebb::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace ebb::test
