#include "ops/pointwise/source_cuda.h"

#include <fmt/core.h>

namespace ebb {

std::string_view stored_type(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return "double";
    case DType::float32:
      return "float";
    case DType::float16:
      return "half";
    case DType::bfloat16:
      return "bfloat16";
    case DType::int64:
      return "long long";
    case DType::int32:
      return "int";
    case DType::uint8:
    case DType::boolean:
      break;
  }
  return "unsigned char";
}
std::string_view computed_type(DType dtype) {
  return is_half(dtype) ? "float" : stored_type(dtype);
}

namespace {

// Functions that the rows' expressions name, for float and double, and how elements are moved. The
// arithmetic is that of the table and of vector_math.h.
constexpr std::string_view prelude = R"(
template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };

// Half types in memory.
struct half { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
template <class S> struct Half {
  static constexpr bool value = Same<S, half>::value || Same<S, bfloat16>::value;
};

inline float exponential(float x) { return expf(x); }
inline double exponential(double x) { return exp(x); }
inline float logarithm(float x) { return logf(x); }
inline double logarithm(double x) { return log(x); }
inline float square_root(float x) { return sqrtf(x); }
inline double square_root(double x) { return sqrt(x); }
inline float power(float x, float y) { return powf(x, y); }
inline double power(double x, double y) { return pow(x, y); }
inline float sine(float x) { return sinf(x); }
inline double sine(double x) { return sin(x); }
inline float cosine(float x) { return cosf(x); }
inline double cosine(double x) { return cos(x); }
inline float hyperbolic_tangent(float x) { return tanhf(x); }
inline double hyperbolic_tangent(double x) { return tanh(x); }
inline float error_function(float x) { return erff(x); }
inline double error_function(double x) { return erf(x); }
inline float log_one_plus(float x) { return log1pf(x); }
inline double log_one_plus(double x) { return log1p(x); }

template <class T> T sigmoid(T x) { return T(1) / (T(1) + exponential(-x)); }
template <class T> T softplus(T x) {
  return (x > T(0) ? x : T(0)) + log_one_plus(exponential(x > T(0) ? -x : x));
}
// Results of half type have few digits: these are off by 5e-5 of their value at most, and as many
// times quicker as they are shorter.
inline float quick_power_of_two(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
inline float quick_reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// exp(-x^2 / 2).
inline float quick_bell(float x) { return quick_power_of_two(x * x * -0.72134752044448170368f); }
// (1 + erf(x / sqrt(2))) / 2, by erfc(a) exp(a^2) as a polynomial of 1 / (1 + 0.53 a).
inline float quick_normal_share(float x, float bell) {
  const float t = quick_reciprocal(__fmaf_rn(0.374766594f, fabsf(x), 1.0f));
  float sum = __fmaf_rn(t, -0.177778767f, 0.393688106f);
  sum = __fmaf_rn(t, sum, 0.172448866f);
  sum = __fmaf_rn(t, sum, 0.313560343f);
  sum = __fmaf_rn(t, sum, 0.298117796f);
  const float below = 0.5f * t * sum * bell;
  return x < 0.0f ? below : 1.0f - below;
}

// Each function is told of which type K its results are.
template <class K, class T> T gelu(T x) {
  if constexpr (Half<K>::value) return x * quick_normal_share(x, quick_bell(x));
  else return T(0.5) * x * (T(1) + error_function(x * T(0.70710678118654752440)));
}
template <class K, class T> T gelu_slope(T x) {
  if constexpr (Half<K>::value) {
    const T bell = quick_bell(x);
    return quick_normal_share(x, bell) + x * bell * T(0.39894228040143267794);
  } else {
    return T(0.5) * (T(1) + error_function(x * T(0.70710678118654752440))) +
           x * exponential(x * x * T(-0.5)) * T(0.39894228040143267794);
  }
}
template <class K, class T> T gelu_tanh(T x) {
  if constexpr (Half<K>::value)  // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
    return x * quick_reciprocal(1.0f + quick_power_of_two(
                                           x * __fmaf_rn(x * x, -0.10294324f, -2.3022082f)));
  else
    return T(0.5) * x * (T(1) + hyperbolic_tangent(T(0.79788456080286535588) *
                                                   (x + T(0.044715) * x * x * x)));
}
template <class T> T gelu_tanh_grad(T g, T x) {
  const T x2 = x * x;
  const T t = hyperbolic_tangent(T(0.79788456080286535588) * (x + T(0.044715) * x * x2));
  return g * T(0.5) * (T(1) + t + x * (T(1) - t * t) * (T(1) + T(3 * 0.044715) * x2) *
                                  T(0.79788456080286535588));
}
template <class T> T silu_grad(T g, T x) {
  const T s = sigmoid(x);
  return g * s * (T(1) + x * (T(1) - s));
}

// To integers by truncation, saturating, NaN to 0.
template <class To, class From> To saturated(From x, To low, To high) {
  if (x != x) return 0;
  return x <= From(low) ? low : (x >= From(high) ? high : To(x));
}
template <class To, class From> To convert(From x) {
  constexpr bool from_floating = Same<From, float>::value || Same<From, double>::value;
  if constexpr (from_floating && Same<To, long long>::value)
    return saturated<long long>(x, -9223372036854775807ll - 1, 9223372036854775807ll);
  else if constexpr (from_floating && Same<To, int>::value)
    return saturated<int>(x, -2147483647 - 1, 2147483647);
  else if constexpr (from_floating && Same<To, unsigned char>::value)
    return saturated<unsigned char>(x, 0, 255);
  else
    return To(x);
}

inline float widen(half x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
inline float widen(bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
template <class T> T widen(T x) { return x; }
template <class S> struct Narrow {
  template <class T> static S of(T x) { return x; }
};
template <> struct Narrow<half> {
  static half of(float x) {
    half result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
  }
};
template <> struct Narrow<bfloat16> {
  static bfloat16 of(float x) {
    bfloat16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
  }
};
// A value of half type computed in float: rounded after every function.
template <class S, class T> T rounded(T x) { return widen(Narrow<S>::of(x)); }

// Up to 16 bytes at a time.
template <int bytes> struct Raw { typedef uint4 type; };
template <> struct Raw<8> { typedef uint2 type; };
template <> struct Raw<4> { typedef unsigned type; };
template <> struct Raw<2> { typedef unsigned short type; };
template <> struct Raw<1> { typedef unsigned char type; };
template <class S, int width> union Pack {
  typedef typename Raw<width * sizeof(S)>::type Word;
  static constexpr int words = width * sizeof(S) / sizeof(Word);
  Word raw[words];
  S values[width];
  void load(const S* from) {
#pragma unroll
    for (int i = 0; i < words; ++i) raw[i] = ((const Word*)from)[i];
  }
  void store(S* to) const {
#pragma unroll
    for (int i = 0; i < words; ++i) ((Word*)to)[i] = raw[i];
  }
};

// Philox 4x32 with 10 rounds: word i % 4 of counter i / 4 belongs to element i.
struct Words { unsigned v[4]; };
inline Words philox(PointwiseRandom random, unsigned long long key, unsigned long long counter) {
  const unsigned long long mixed = random.seed ^ (random.step * 0x9E3779B97F4A7C15ull);
  unsigned k0 = (unsigned)mixed, k1 = (unsigned)(mixed >> 32);
  unsigned c0 = (unsigned)counter, c1 = (unsigned)(counter >> 32);
  unsigned c2 = (unsigned)key, c3 = (unsigned)(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned low0 = 0xD2511F53u * c0, high0 = __umulhi(0xD2511F53u, c0);
    const unsigned low1 = 0xCD9E8D57u * c2, high1 = __umulhi(0xCD9E8D57u, c2);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
inline unsigned word(const Words& words, unsigned i) {
  const unsigned low = i & 1 ? words.v[1] : words.v[0], high = i & 1 ? words.v[3] : words.v[2];
  return i & 2 ? high : low;
}
inline float uniform(PointwiseRandom random, unsigned long long key, unsigned long long index) {
  return (float)(word(philox(random, key, index / 4), (unsigned)index & 3) >> 8) * 0x1p-24f;
}
// Box-Muller on the pairs of words of a counter.
inline double normal(PointwiseRandom random, unsigned long long key, unsigned long long index) {
  const Words words = philox(random, key, index / 4);
  const unsigned pair = (unsigned)index & 2;
  const double first = word(words, pair), second = word(words, pair + 1);
  const double radius = sqrt(-2.0 * log((first + 0.5) * 0x1p-32));
  const double angle = 2.0 * 3.14159265358979323846 * (second * 0x1p-32);
  return radius * (index & 1 ? sin(angle) : cos(angle));
}
)";

// One line of the program: value `number` from its operands.
std::string statement(const PointwiseInstruction& step, const std::vector<DType>& dtypes,
                      std::size_t number, std::size_t& numbers, bool last) {
  const DType key =
      step.row->arity > 0 ? dtypes[static_cast<std::size_t>(step.operands.back())] : step.dtype;
  std::string text = fmt::format(
      "  {} v{};\n  {{ typedef {} T; typedef {} K; typedef {} R; (void)sizeof(T), (void)sizeof(K);",
      computed_type(step.dtype), number, computed_type(key), stored_type(key),
      computed_type(step.dtype));
  for (std::size_t i = 0; i < step.operands.size(); ++i)
    text += fmt::format(" const {} {} = v{};",
                        computed_type(dtypes[static_cast<std::size_t>(step.operands[i])]),
                        static_cast<char>('a' + i), step.operands[i]);
  if (step.row->arity == 0)
    text += fmt::format(" const PointwiseNumbers& n = p.numbers[{}];", numbers++);
  text += fmt::format(" constexpr bool boolean = {}; (void)boolean;", step.dtype == b8);
  text += fmt::format(" v{} = R({}); }}\n", number, step.row->cuda);
  if (is_half(step.dtype) && !last)  // the last is rounded when it is stored
    text += fmt::format("  v{0} = rounded<{1}>(v{0});\n", number, stored_type(step.dtype));
  return text;
}

// `Out evaluate(p, random, index, inputs...)`: the program on one element.
std::string evaluate(const FusedAttributes& program) {
  const std::size_t inputs = program.input_dtypes.size();
  std::string text = fmt::format(
      "inline {} evaluate(const PointwiseParameters& p, PointwiseRandom random, Index index",
      computed_type(program.code.back().dtype));
  for (std::size_t i = 0; i < inputs; ++i)
    text += fmt::format(", {} v{}", computed_type(program.input_dtypes[i]), i);
  text += ") {\n";
  std::vector<DType> dtypes = program.input_dtypes;
  std::size_t numbers = 0;
  for (const PointwiseInstruction& step : program.code) {
    text += statement(step, dtypes, dtypes.size(), numbers, &step == &program.code.back());
    dtypes.push_back(step.dtype);
  }
  return text + fmt::format("  return v{};\n}}\n", dtypes.size() - 1);
}

using Kind = PointwiseAccess::Kind;

}  // namespace

std::string pointwise_functions(const FusedAttributes& program, const PointwiseAccess& access) {
  std::string text = pointwise_parameters_text;
  text += prelude;
  text += fmt::format("typedef {} Index;\n", access.wide_index ? "unsigned long long" : "unsigned");
  return text + evaluate(program);
}

std::string random_state(const FusedAttributes& program) {
  bool draws = false;
  for (const PointwiseInstruction& step : program.code)
    draws |= step.row->cuda.find("random") != std::string_view::npos;
  return draws ? "const PointwiseRandom random = *p.random;\n"
               : "const PointwiseRandom random = {0, 0};\n";
}

// From the innermost axis outwards.
std::string operand_places(const PointwiseAccess& access) {
  std::string text;
  for (std::size_t i = 0; i < access.inputs.size(); ++i)
    if (access.inputs[i] != Kind::scalar) text += fmt::format("    long long at{} = 0;\n", i);
  for (int axis = access.rank - 1; axis >= 0; --axis) {
    if (axis > 0)
      text += fmt::format(
          "    {{ const Index next = rest / (Index)p.extent[{0}], step = rest - next * "
          "(Index)p.extent[{0}]; rest = next;",
          axis);
    else
      text += "    { const Index step = rest;";
    text += " (void)step;";
    for (std::size_t i = 0; i < access.inputs.size(); ++i)
      if (access.inputs[i] != Kind::scalar)
        text += fmt::format(" at{0} += (long long)step * p.stride[{0}][{1}];", i, axis);
    text += " }\n";
  }
  return text;
}

std::string pointwise_source(const FusedAttributes& program, const PointwiseAccess& access) {
  const std::size_t inputs = program.input_dtypes.size();
  const std::string_view out = stored_type(program.code.back().dtype);
  std::string text = pointwise_functions(program, access);
  text += fmt::format("constexpr int width = {};\n", access.width);
  text += R"(
extern "C" __global__ void __launch_bounds__(256) pointwise(const __grid_constant__ PointwiseParameters p) {
  const Index group = (Index)blockIdx.x * 256u + threadIdx.x;
)";
  text += "  " + random_state(program);
  for (std::size_t i = 0; i < inputs; ++i)
    text += fmt::format("  const {0}* in{1} = (const {0}*)p.in[{1}];\n",
                        stored_type(program.input_dtypes[i]), i);
  text += fmt::format("  {0}* out = ({0}*)p.out;\n", out);

  text += "  if (group < p.groups) {\n    Index rest = group;\n    (void)rest;\n";
  text += operand_places(access);
  for (std::size_t i = 0; i < inputs; ++i) {
    const std::string_view type = stored_type(program.input_dtypes[i]);
    if (access.inputs[i] == Kind::pack)
      text += fmt::format("    Pack<{0}, width> x{1};\n    x{1}.load(in{1} + at{1});\n", type, i);
    else
      text += fmt::format("    const {0} x{1} = in{1}[{2}];\n", type, i,
                          access.inputs[i] == Kind::scalar ? "0" : fmt::format("at{}", i));
  }
  text += fmt::format(
      "    Pack<{}, width> result;\n#pragma unroll\n    for (int k = 0; k < width; ++k)\n"
      "      result.values[k] = Narrow<{}>::of(evaluate(p, random, group * width + k",
      out, out);
  for (std::size_t i = 0; i < inputs; ++i)
    text += access.inputs[i] == Kind::pack ? fmt::format(", widen(x{}.values[k])", i)
                                           : fmt::format(", widen(x{})", i);
  text += "));\n    result.store(out + (unsigned long long)group * width);\n  }";

  // What is left over of one axis after whole groups, an element for each thread.
  if (access.rank == 1 && access.width > 1) {
    text += fmt::format(
        " else {{\n    const Index at = (Index)p.groups * width + (group - (Index)p.groups);\n"
        "    if (at < p.count) out[at] = Narrow<{}>::of(",
        out);
    text += "evaluate(p, random, at";
    for (std::size_t i = 0; i < inputs; ++i)
      text += access.inputs[i] == Kind::pack ? fmt::format(", widen(in{}[at])", i)
                                             : fmt::format(", widen(in{}[0])", i);
    text += "));\n  }";
  }
  return text + "\n}\n";
}

}  // namespace ebb
