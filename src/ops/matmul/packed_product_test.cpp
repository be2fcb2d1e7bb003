#include "ops/matmul/packed_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>

#include "ops/matmul/product.h"
#include "support/allocation_count.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

// The sets of instructions.
struct Floats {
  using Number = float;
  static const PanelKernels<float>* kernels() { return panel_kernels<float>(); }
  static constexpr const char* name = "AVX512";
};
struct Pairs {
  using Number = BFloat16;
  static const PanelKernels<BFloat16>* kernels() { return bfloat16_vector_kernels(); }
  static constexpr const char* name = "AVX512BF16";
};
struct Tiles {
  using Number = BFloat16;
  static const PanelKernels<BFloat16>* kernels() { return bfloat16_tile_kernels(); }
  static constexpr const char* name = "AMX";
};

template <class Kind>
class PackedProducts : public testing::Test {
 protected:
  void SetUp() override {
    if (!Kind::kernels()) GTEST_SKIP() << "this processor has no " << Kind::name;
  }
};

struct KindNames {
  template <class Kind>
  static std::string GetName(int) {
    return Kind::name;
  }
};
using Kinds = testing::Types<Floats, Pairs, Tiles>;
TYPED_TEST_SUITE(PackedProducts, Kinds, KindNames);

struct Size {
  std::int64_t rows, inner, columns;
};
// No element along each axis, and one; panels that are full, short by one and over by one; an odd
// inner size; a last panel of at most 16 rows or columns; several tiles along each axis.
const Size sizes[] = {{0, 4, 3},       {5, 0, 3},    {5, 4, 0},    {0, 0, 0},      {1, 1, 1},
                      {1, 7, 1},       {3, 5, 2},    {14, 32, 32}, {13, 31, 31},   {15, 33, 33},
                      {29, 2, 48},     {1, 300, 70}, {40, 1, 50},  {32, 64, 32},   {31, 65, 16},
                      {33, 63, 17},    {16, 96, 64}, {600, 9, 20}, {20, 1030, 33}, {17, 2049, 40},
                      {520, 1030, 20}, {9, 3, 1100}};

// A matrix in a larger one that is NaN everywhere else: what is read beside it shows.
template <class T>
struct Matrix {
  MatrixLayout layout;
  std::vector<T> numbers;

  template <class Draw>
  Matrix(std::int64_t rows, std::int64_t columns, bool transposed, Draw&& draw)
      : layout(transposed ? MatrixLayout{rows, columns, 1, rows + 3}
                          : MatrixLayout{rows, columns, columns + 3, 1}),
        numbers(static_cast<std::size_t>((rows + 3) * (columns + 3) + 64),
                T(std::numeric_limits<float>::quiet_NaN())) {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) at(i, j) = T(draw());
  }
  T& at(std::int64_t i, std::int64_t j) {
    return numbers[static_cast<std::size_t>(i * layout.row_stride + j * layout.column_stride)];
  }
  float operator()(std::int64_t i, std::int64_t j) const {
    return const_cast<Matrix&>(*this).at(i, j);
  }
};

struct Integers {
  std::mt19937 engine{1};
  float operator()() { return static_cast<float>(static_cast<int>(engine() % 7) - 3); }
};
struct Reals {
  std::mt19937 engine{2};
  float operator()() { return std::uniform_real_distribution<float>(-1.0f, 1.0f)(engine); }
};

constexpr float untouched = -12345.0f;

// A workspace, which begins at a whole line of the cache as in a plan; what is past it shows what
// is written there.
class Workspace {
  struct alignas(buffer_alignment.count) Line {
    std::byte bytes[64];
  };

 public:
  explicit Workspace(Bytes size)
      : size_(static_cast<std::size_t>(size.count)), lines_(size_ / sizeof(Line) + 2) {
    std::fill(past(), end(), std::byte{0xee});
  }
  std::byte* data() { return lines_.front().bytes; }
  bool kept() {
    return std::all_of(past(), end(), [](std::byte b) { return b == std::byte{0xee}; });
  }

 private:
  std::byte* past() { return data() + size_; }
  std::byte* end() { return data() + lines_.size() * sizeof(Line); }

  std::size_t size_;
  std::vector<Line> lines_;
};

// What `run` writes to rows that lie two elements apart; checks that nothing else is written.
template <class Kind, class T, class Out, class Run>
std::vector<Out> written(const Matrix<T>& a, const Matrix<T>& b,
                         typename PackedProduct<T>::Result result, Out before, const Run& run) {
  const std::int64_t rows = a.layout.rows, columns = b.layout.columns, stride = columns + 2;
  const PackedProduct<T> product(rows, a.layout.columns, columns, result, Kind::kernels());
  Workspace workspace(product.workspace());
  std::vector<Out> out(static_cast<std::size_t>(rows * stride + 64), before);
  run(product,
      typename PackedProduct<T>::Factors{a.layout, a.numbers.data(), b.layout, b.numbers.data()},
      out.data(), stride, workspace.data());
  EXPECT_TRUE(workspace.kept()) << "written past the workspace";
  std::vector<Out> values;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(out.size()); ++i)
    if (i < rows * stride && i % stride < columns)
      values.push_back(out[static_cast<std::size_t>(i)]);
    else
      EXPECT_EQ(static_cast<float>(out[static_cast<std::size_t>(i)]), static_cast<float>(before));
  return values;
}

template <class Kind, class T = typename Kind::Number>
std::vector<float> sums_of(const Matrix<T>& a, const Matrix<T>& b, Store store, int workers,
                           float before = untouched) {
  return written<Kind>(
      a, b, PackedProduct<T>::Result::sums, before,
      [&](const auto& product, const auto& factors, float* out, std::int64_t stride,
          std::byte* area) { product.sum(factors, store, out, stride, area, workers); });
}

template <class Kind, class T = typename Kind::Number>
std::vector<T> numbers_of(const Matrix<T>& a, const Matrix<T>& b,
                          std::type_identity_t<const T*> bias, int workers) {
  return written<Kind>(
      a, b, PackedProduct<T>::Result::numbers, T(untouched),
      [&](const auto& product, const auto& factors, T* out, std::int64_t stride, std::byte* area) {
        product.write(factors, bias, out, stride, area, workers);
      });
}

template <class Check>
void for_each_case(const Check& check) {
  for (const Size& size : sizes)
    for (bool transpose_a : {false, true})
      for (bool transpose_b : {false, true}) {
        SCOPED_TRACE(testing::Message() << size.rows << " x " << size.inner << " x " << size.columns
                                        << (transpose_a ? ", first transposed" : "")
                                        << (transpose_b ? ", second transposed" : ""));
        check(size, transpose_a, transpose_b);
      }
}

// Sums of integers below 2^24 have no rounding in any order.
TYPED_TEST(PackedProducts, OfIntegersAreExact) {
  using T = typename TypeParam::Number;
  for_each_case([](const Size& size, bool transpose_a, bool transpose_b) {
    Integers draw;
    const Matrix<T> a(size.rows, size.inner, transpose_a, draw),
        b(size.inner, size.columns, transpose_b, draw);
    std::vector<T> bias;
    for (std::int64_t j = 0; j < size.columns; ++j) bias.push_back(T(draw()));
    const auto plain = sums_of<TypeParam>(a, b, Store::overwrite, 2);
    const auto added = sums_of<TypeParam>(a, b, Store::add, 2, 5.0f);
    const auto rounded = numbers_of<TypeParam>(a, b, nullptr, 2);
    const auto biased = numbers_of<TypeParam>(a, b, bias.data(), 2);
    std::size_t at = 0;
    for (std::int64_t i = 0; i < size.rows; ++i)
      for (std::int64_t j = 0; j < size.columns; ++j, ++at) {
        float sum = 0.0f;
        for (std::int64_t k = 0; k < size.inner; ++k) sum += a(i, k) * b(k, j);
        ASSERT_EQ(plain[at], sum) << i << ", " << j;
        ASSERT_EQ(added[at], sum + 5.0f) << i << ", " << j;
        ASSERT_EQ(rounded[at], T(sum)) << i << ", " << j;
        ASSERT_EQ(biased[at], T(sum + bias[static_cast<std::size_t>(j)])) << i << ", " << j;
      }
  });
}

TYPED_TEST(PackedProducts, OfRealsAreFloatSums) {
  using T = typename TypeParam::Number;
  for_each_case([](const Size& size, bool transpose_a, bool transpose_b) {
    Reals draw;
    const Matrix<T> a(size.rows, size.inner, transpose_a, draw),
        b(size.inner, size.columns, transpose_b, draw);
    const auto sums = sums_of<TypeParam>(a, b, Store::overwrite, 2);
    const auto rounded = numbers_of<TypeParam>(a, b, nullptr, 2);
    std::size_t at = 0;
    for (std::int64_t i = 0; i < size.rows; ++i)
      for (std::int64_t j = 0; j < size.columns; ++j, ++at) {
        double sum = 0.0, sizes_sum = 0.0;
        for (std::int64_t k = 0; k < size.inner; ++k) {
          const double term = static_cast<double>(a(i, k)) * static_cast<double>(b(k, j));
          sum += term, sizes_sum += std::abs(term);
        }
        // Products of two bfloat16 are exact in float32, and products of floats are not rounded
        // before they are added. Each of the additions, one a term, rounds a partial sum by half a
        // unit, 2^-24 of at most the sum of all sizes.
        const double bound = static_cast<double>(size.inner) * 0x1p-24 * sizes_sum;
        ASSERT_NEAR(sums[at], sum, bound) << i << ", " << j;
        // Rounded once more, to the bits of T.
        ASSERT_EQ(rounded[at], T(sums[at])) << i << ", " << j;
      }
  });
}

TYPED_TEST(PackedProducts, HaveTheSameBitsOnAnyNumberOfThreads) {
  using T = typename TypeParam::Number;
  // Enough work for several threads in every tile, and several tiles along one axis each.
  for (const Size& size :
       {Size{530, 200, 90}, Size{70, 1100, 130}, Size{90, 100, 1050}, Size{70, 600, 90}}) {
    Reals draw;
    const Matrix<T> a(size.rows, size.inner, true, draw), b(size.inner, size.columns, true, draw);
    const auto sums = sums_of<TypeParam>(a, b, Store::overwrite, 1);
    const auto rounded = numbers_of<TypeParam>(a, b, nullptr, 1);
    for (int workers : {2, 3, 7}) {
      EXPECT_EQ(sums_of<TypeParam>(a, b, Store::overwrite, workers), sums) << workers;
      EXPECT_EQ(numbers_of<TypeParam>(a, b, nullptr, workers), rounded) << workers;
    }
  }
}

// A row of a result does not depend on how many other rows and columns are computed with it.
TYPED_TEST(PackedProducts, HaveTheSameBitsInAnyCompany) {
  using T = typename TypeParam::Number;
  Reals draw;
  Matrix<T> a(530, 700, false, draw), b(700, 1050, false, draw);
  const auto all = sums_of<TypeParam>(a, b, Store::overwrite, 2);
  for (const auto& [rows, columns] : {std::pair{1, 1050}, std::pair{9, 40}, std::pair{300, 7}}) {
    a.layout.rows = rows, b.layout.columns = columns;
    const auto some = sums_of<TypeParam>(a, b, Store::overwrite, 2);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j)
        ASSERT_EQ(some[static_cast<std::size_t>(i * columns + j)],
                  all[static_cast<std::size_t>(i * 1050 + j)])
            << rows << " × " << columns << " at " << i << ", " << j;
  }
}

TYPED_TEST(PackedProducts, KeepInfinityAndNanInTheirRow) {
  using T = typename TypeParam::Number;
  Integers draw;
  Matrix<T> a(16, 9, false, draw), b(9, 20, false, [] { return 1.0f; });
  a.at(3, 8) = T(std::numeric_limits<float>::infinity());
  a.at(5, 0) = T(std::numeric_limits<float>::quiet_NaN());
  const auto out = sums_of<TypeParam>(a, b, Store::overwrite, 1);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t row = i / 20;
    EXPECT_EQ(std::isinf(out[i]), row == 3) << row;
    EXPECT_EQ(std::isnan(out[i]), row == 5) << row;
  }
}

// A sum of equal terms rounds every addition the same way: in one chain of 16384 additions the
// errors come to 1.5e-4 of the sum. A chain ends with its panel, after at most 1024 terms.
TYPED_TEST(PackedProducts, AddUpLongSumsPanelByPanel) {
  using T = typename TypeParam::Number;
  constexpr std::int64_t inner = 16384;
  const Matrix<T> a(3, inner, false, [] { return 0.1f; }), b(inner, 5, false, [] { return 1.0f; });
  const double sum = static_cast<double>(inner) * static_cast<double>(a(0, 0));
  for (float value : sums_of<TypeParam>(a, b, Store::overwrite, 1))
    EXPECT_NEAR(value, sum, 2e-5 * sum);
}

// The instructions for bfloat16 take numbers below the smallest normal one, 2^-126, for 0.
TYPED_TEST(PackedProducts, LoseOnlyBfloat16BelowTheSmallestNormalNumber) {
  using T = typename TypeParam::Number;
  const Matrix<T> a(2, 2, false, [] { return 0x1p-130f; }), b(2, 2, false, [] { return 1.0f; });
  for (float value : sums_of<TypeParam>(a, b, Store::overwrite, 1))
    EXPECT_TRUE(value == 0x1p-129f || (std::is_same_v<T, BFloat16> && value == 0.0f)) << value;
}

TYPED_TEST(PackedProducts, AllocateNothing) {
  using T = typename TypeParam::Number;
  const PackedProduct<T> product(200, 1500, 300, PackedProduct<T>::Result::numbers,
                                 TypeParam::kernels());
  std::vector<T> a(200 * 1500), b(1500 * 300), out(200 * 300);
  Workspace workspace(product.workspace());
  const auto run = [&] {
    product.write(
        {MatrixLayout::plain(200, 1500), a.data(), MatrixLayout::plain(1500, 300), b.data()},
        nullptr, out.data(), 300, workspace.data(), 2);
  };
  run();  // threads start
  const std::int64_t before = allocation_count();
  run();
  EXPECT_EQ(allocation_count(), before);
}

// Batches of small products have a thread each, large ones take turns; both are exact, and with the
// same bits on one thread.
TEST(Matmul, BatchesOfBFloat16) {
  const int all = threads();
  for (const Shape& shape : {Shape{6, 20, 33}, Shape{2, 210, 1030}}) {
    const auto integers = [&](std::uint64_t seed) {
      return eval(cast(make_input(SampleInput::index(shape, 4), f32, seed), f32));
    };
    const Tensor a = integers(1), b = integers(2);
    const auto exact = values_of(eval(cast(matmul(a, b, Transpose::no, Transpose::yes), bf16)));
    for (int count : {1, 2}) {
      set_threads(count);
      EXPECT_EQ(
          values_of(eval(matmul(cast(a, bf16), cast(b, bf16), Transpose::no, Transpose::yes))),
          exact);
    }
  }
  set_threads(all);
}

}  // namespace
}  // namespace ebb::test
