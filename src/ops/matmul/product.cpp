#include "ops/matmul/product.h"

#include <algorithm>
#include <type_traits>

#include "ops/matmul/gemm.h"

namespace ebb {

template <class T>
MatrixProduct<T>::MatrixProduct(std::int64_t rows, std::int64_t inner, std::int64_t columns) {
  if (std::is_same_v<T, float> && PackedProduct<float>::available())
    packed_.emplace(rows, inner, columns, PackedProduct<float>::Result::numbers);
}

template <class T>
Bytes MatrixProduct<T>::workspace() const {
  return packed_ ? packed_->workspace() : Bytes{};
}

template <class T>
void MatrixProduct<T>::write(const Factors& f, const T* bias, T* out, std::int64_t stride,
                             std::byte* workspace, int workers) const {
  if constexpr (std::is_same_v<T, float>)
    if (packed_) return packed_->write({f.a, f.x, f.b, f.y}, bias, out, stride, workspace, workers);
  if (bias)
    for (std::int64_t i = 0; i < f.a.rows; ++i) std::copy_n(bias, f.b.columns, out + i * stride);
  sum(f, bias ? Store::add : Store::overwrite, out, stride, workspace, workers);
}

template <class T>
void MatrixProduct<T>::sum(const Factors& f, Store store, T* out, std::int64_t stride,
                           std::byte* workspace, int workers) const {
  if constexpr (std::is_same_v<T, float>)
    if (packed_) return packed_->sum({f.a, f.x, f.b, f.y}, store, out, stride, workspace, workers);
  if (f.a.rows == 0 || f.b.columns == 0) return;
  if (f.a.columns > 0)
    return gemm(f.a, f.x, f.b, f.y, store == Store::add ? T(1) : T(0), out, stride, workers);
  if (store == Store::overwrite)
    for (std::int64_t i = 0; i < f.a.rows; ++i) std::fill_n(out + i * stride, f.b.columns, T(0));
}

template class MatrixProduct<float>;
template class MatrixProduct<double>;

}  // namespace ebb
