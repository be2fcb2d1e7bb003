#include "cli/calibration.h"

#include <fmt/core.h>

#include <algorithm>

#include "data/gzip.h"
#include "ebb/data/sequences.h"
#include "ebb/error.h"
#include "ebb/prune/gptq.h"
#include "ebb/text/tokenizer.h"

namespace ebb::cli {

namespace fs = std::filesystem;

data::TokenStream read_tokens(const fs::path& file, const fs::path& model_folder,
                              std::int64_t vocabulary) {
  if (file.extension() == ".bin")
    return data::TokenStream::file(file, data::TokenWidth::int32, vocabulary);
  if (data::is_json_lines(file))
    throw FileError(fmt::format(
        "{}: its lines are JSON, but running text is expected, or tokens as FILE.bin (int32)",
        file.string()));
  if (!fs::exists(model_folder / "tokenizer.json"))
    throw FileError(fmt::format(
        "{}: text needs a tokenizer.json in {}; without one, give tokens as FILE.bin (int32)",
        file.string(), model_folder.string()));
  const text::Tokenizer tokenizer = text::Tokenizer::load(model_folder);
  try {
    return data::TokenStream::of(tokenizer.encode(data::whole_text(file)), vocabulary,
                                 file.string());
  } catch (const ValueError& error) {
    throw FileError(fmt::format("{}: {}", file.string(), error.what()));
  }
}

std::vector<Batch> spread_windows(const data::TokenStream& tokens, const WindowChoice& choice) {
  if (tokens.size() < 2)
    throw FileError(fmt::format("{}: at least two tokens are needed, but there are {}",
                                tokens.name(), tokens.size()));
  const std::int64_t length = std::min(choice.sequence, tokens.size() - 1),
                     windows = (tokens.size() - 1) / length,
                     samples = std::min(choice.samples, windows);
  std::int64_t rows = std::min(choice.batch, samples);
  while (samples % rows != 0) --rows;
  std::vector<Batch> batches;
  for (std::int64_t first = 0; first < samples; first += rows) {
    std::vector<std::int32_t> x(static_cast<std::size_t>(rows * length)), y(x.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t begin = (first + r) * windows / samples * length;
      const std::size_t to = static_cast<std::size_t>(r * length),
                        size = static_cast<std::size_t>(length);
      tokens.read(begin, std::span(x).subspan(to, size));
      tokens.read(begin + 1, std::span(y).subspan(to, size));
    }
    batches.push_back({{Tensor::from(x, {rows, length}), Tensor::from(y, {rows, length})}});
  }
  return batches;
}

void pack_on_data(nn::ModuleBase& module, models::CausalLm& lm, LowBits kind, const fs::path& file,
                  const fs::path& model_folder) {
  const std::vector<Batch> batches =
      spread_windows(read_tokens(file, model_folder, lm.vocabulary()), {.sequence = lm.context()});
  prune::quantise_weights(
      module, [&lm](const Batch& b) { return lm.loss(b.x(), b.y()); }, batches, kind);
}

}  // namespace ebb::cli
