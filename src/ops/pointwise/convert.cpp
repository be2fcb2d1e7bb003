#include "ops/pointwise/convert.h"

#include <algorithm>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace ebb {
namespace {

template <class T>
bool holds_integer(double value) {
  // The upper limit as the power of two behind it: the limit itself may not be a double.
  const double limit = std::ldexp(1.0, std::numeric_limits<T>::digits);
  return value >= static_cast<double>(std::numeric_limits<T>::min()) && value < limit &&
         value == std::trunc(value);
}

// To the nearest number of a floating dtype.
double rounded(DType dtype, double value) {
  if (dtype == f64) return value;
  const float single = static_cast<float>(value);
  if (dtype == f16) return static_cast<float>(Half(single));
  if (dtype == bf16) return static_cast<float>(BFloat16(single));
  return single;
}

}  // namespace

bool holds(DType dtype, double value) {
  switch (dtype) {
    case DType::int64:
      return holds_integer<std::int64_t>(value);
    case DType::int32:
      return holds_integer<std::int32_t>(value);
    case DType::uint8:
      return holds_integer<std::uint8_t>(value);
    case DType::boolean:
      return value == 0.0 || value == 1.0;
    default:
      return value != value || rounded(dtype, value) == value;
  }
}

bool overflows(DType dtype, double value) {
  return is_floating(dtype) && std::isfinite(value) && !std::isfinite(rounded(dtype, value));
}

void widen(const BFloat16* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
}

void narrow(const float* from, BFloat16* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = BFloat16(from[i]);
}

void widen(const MachineHalf* from, float* to, std::int64_t count) {
  std::int64_t i = 0;
#if defined(__AVX__) && defined(__F16C__)
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#endif
  for (; i < count; ++i) to[i] = from[i];
}

void narrow(const float* from, MachineHalf* to, std::int64_t count) {
  std::int64_t i = 0;
#if defined(__AVX__) && defined(__F16C__)
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < count; ++i) to[i] = MachineHalf(from[i]);
}

namespace {

// In pieces small enough for the first-level cache.
template <class H>
void round_through(float* values, std::int64_t count) {
  H buffer[256];
  for (std::int64_t i = 0; i < count; i += 256) {
    const std::int64_t n = std::min<std::int64_t>(256, count - i);
    narrow(values + i, buffer, n);
    widen(buffer, values + i, n);
  }
}

template <class S, class T>
void gather(const std::byte* from, std::int64_t stride, void* tile, std::int64_t count) {
  const S* source = reinterpret_cast<const S*>(from);
  T* target = static_cast<T*>(tile);
  if (stride == 0) {
    std::fill_n(target, count, static_cast<T>(*source));
  } else if (stride == 1) {
    if constexpr (std::is_same_v<S, T>)
      std::memcpy(target, source, static_cast<std::size_t>(count) * sizeof(T));
    else
      widen(source, target, count);
  } else {
    for (std::int64_t i = 0; i < count; ++i) target[i] = static_cast<T>(source[i * stride]);
  }
}

template <class S, class T>
void store(const void* tile, std::byte* to, std::int64_t count) {
  if constexpr (std::is_same_v<S, T>)
    std::memcpy(to, tile, static_cast<std::size_t>(count) * sizeof(T));
  else
    narrow(static_cast<const T*>(tile), reinterpret_cast<S*>(to), count);
}

template <class From, class To>
void cast_run(const TileArgs& args) {
  const From* x = static_cast<const From*>(args.in[0]);
  To* y = static_cast<To*>(args.out);
  for (std::int64_t i = 0; i < args.count; ++i) y[i] = convert<To>(x[i]);
}

template <class From>
void to_boolean(const TileArgs& args) {
  const From* x = static_cast<const From*>(args.in[0]);
  std::uint8_t* y = static_cast<std::uint8_t*>(args.out);
  for (std::int64_t i = 0; i < args.count; ++i) y[i] = x[i] != From(0);
}

template <class From>
TileFunction cast_from(DType to) {
  if (to == b8) return to_boolean<From>;
  switch (tile_type(to)) {
    case TileType::float64:
      return cast_run<From, double>;
    case TileType::float32:
      return cast_run<From, float>;
    case TileType::int64:
      return cast_run<From, std::int64_t>;
    case TileType::int32:
      return cast_run<From, std::int32_t>;
    case TileType::byte:
      break;
  }
  return cast_run<From, std::uint8_t>;
}

}  // namespace

void round_to_half(float* values, std::int64_t count) { round_through<MachineHalf>(values, count); }
void round_to_bfloat16(float* values, std::int64_t count) {
  round_through<BFloat16>(values, count);
}

GatherFunction gather_tile(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return gather<double, double>;
    case DType::float32:
      return gather<float, float>;
    case DType::float16:
      return gather<MachineHalf, float>;
    case DType::bfloat16:
      return gather<BFloat16, float>;
    case DType::int64:
      return gather<std::int64_t, std::int64_t>;
    case DType::int32:
      return gather<std::int32_t, std::int32_t>;
    case DType::uint8:
    case DType::boolean:
      break;
  }
  return gather<std::uint8_t, std::uint8_t>;
}

StoreFunction store_tile(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return store<double, double>;
    case DType::float32:
      return store<float, float>;
    case DType::float16:
      return store<MachineHalf, float>;
    case DType::bfloat16:
      return store<BFloat16, float>;
    case DType::int64:
      return store<std::int64_t, std::int64_t>;
    case DType::int32:
      return store<std::int32_t, std::int32_t>;
    case DType::uint8:
    case DType::boolean:
      break;
  }
  return store<std::uint8_t, std::uint8_t>;
}

TileFunction cast_tile(DType from, DType to) {
  switch (tile_type(from)) {
    case TileType::float64:
      return cast_from<double>(to);
    case TileType::float32:
      return cast_from<float>(to);
    case TileType::int64:
      return cast_from<std::int64_t>(to);
    case TileType::int32:
      return cast_from<std::int32_t>(to);
    case TileType::byte:
      break;
  }
  return cast_from<std::uint8_t>(to);
}

}  // namespace ebb
