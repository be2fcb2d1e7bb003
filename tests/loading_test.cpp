// The memory that making and loading a model takes, as the operating system reports it: the size of
// the model.
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "ebb/data/images.h"
#include "ebb/ebb.h"
#include "ebb/io/safetensors.h"
#include "ebb/nn/layers.h"
#include "ebb/storage.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"

namespace ebb::test {
namespace {

// A line of /proc/self/status such as "VmHWM:     1234 kB".
Bytes status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;)
    if (word == key + ":") {
      std::int64_t kilobytes = 0;
      file >> kilobytes;
      return {kilobytes * 1024};
    }
  return {};
}

// Resets the high-water mark; false if that is not allowed.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good() && status("VmHWM") < status("VmRSS") + 1_MiB;
}

constexpr std::int64_t width = 2048, layers = 12;  // a layer is 16 MiB in float32

struct Tower : nn::Module<Tower> {
  nn::List<nn::Linear> list{at("layers"), layers, width, width, nn::Bias::no};
};

struct Taken {
  Bytes peak, model;
};

// The largest growth of the process while `use` ran, and the memory that the model then holds.
template <class Use>
Taken taken(const Use& use) {
  const Bytes before = status("VmRSS");
  EXPECT_TRUE(reset_peak());
  const Bytes model = use();
  return {status("VmHWM") - before, model};
}

Bytes resident(const nn::ModuleBase& model) {
  Bytes total;
  for (const nn::NamedVariable& p : model.parameters())
    total += p.variable.node()->storage()->resident();
  return total;
}

class Loading : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (sanitized) GTEST_SKIP() << "a sanitizer's own memory cannot be told apart";
    if (!reset_peak()) GTEST_SKIP() << "the peak cannot be reset here";
    // Threads and their buffers must exist before anything is measured.
    (void)eval(random_normal({512, 512}, 0.0, 1.0));
  }
};

// Slack for a few pages of code and small allocations.
constexpr Bytes slack = 3_MiB;

TEST_P(Loading, MakingTakesTheModelAlone) {
  const DType dtype = GetParam();
  auto model = make<Tower>(device::cpu, dtype);
  const Taken t = taken([&] {
    for (const nn::NamedVariable& p : model.parameters()) p.variable.materialise(1);
    return resident(model);
  });
  EXPECT_EQ(t.model, layers * width * width * size_of(dtype));
  EXPECT_LE(t.peak, t.model + slack);
}

TEST_P(Loading, TakesTheModelAlone) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "model.safetensors";
  {
    auto model = make<Tower>(device::cpu, f32);
    std::vector<io::NamedTensor> tensors;
    for (const nn::NamedVariable& p : model.parameters()) {
      p.variable.materialise(1);
      tensors.push_back({p.path, p.variable});
    }
    io::write_safetensors(path, tensors);
  }
  const DType dtype = GetParam();
  auto model = make<Tower>(device::cpu, dtype);
  const Taken t = taken([&] {
    const io::SafetensorsFile file(path);
    for (const nn::NamedVariable& p : model.parameters()) file.load(p.path, p.variable);
    return resident(model);
  });
  EXPECT_EQ(t.model, layers * width * width * size_of(dtype));
  EXPECT_LE(t.peak, t.model + slack);
  RecordProperty("model_bytes", std::to_string(t.model.count));
  RecordProperty("peak_bytes", std::to_string(t.peak.count));
  // The values are those of the file, rounded once.
  const io::SafetensorsFile file(path);
  const nn::NamedVariable last = model.parameters().back();
  const std::vector<std::byte> bytes = file.bytes(last.path);
  const float* from = reinterpret_cast<const float*>(bytes.data());
  const std::vector<float> to = cast(last.variable, f32).to_vector<float>();
  for (std::size_t i = 0; i < to.size(); i += 997)
    ASSERT_EQ(to[i], dtype == f32 ? from[i] : static_cast<float>(BFloat16(from[i])));
}

INSTANTIATE_TEST_SUITE_P(Precisions, Loading, ::testing::Values(f32, bf16),
                         [](const auto& test) { return std::string(name(test.param)); });

// A packed file that claims to be a thousand times larger takes memory as its data arrive, not
// before.
TEST(LoadingPacked, ClaimsTakeNoMemory) {
  if (sanitized) GTEST_SKIP() << "a sanitizer's own memory cannot be told apart";
  if (!reset_peak()) GTEST_SKIP() << "the peak cannot be reset here";
  const TemporaryFolder folder;
  const std::string header{"\0\0\x08\x03\0\0\x03\xe8\0\0\x03\xe8\0\0\x01\xf4",
                           16};  // 1000 × 1000 × 500
  const std::string labels{"\0\0\x08\x01\0\0\x03\xe8", 8};
  std::string noise(1 << 20, '\0');
  std::uint32_t state = 1;
  for (char& c : noise) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  const auto packed = [&](const char* name, const std::string& bytes) {
    const gzFile file = gzopen((folder / name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return folder / name;
  };
  const auto images = packed("images", header + noise),
             classes = packed("labels", labels + std::string(1000, '\0'));
  const Taken t = taken([&] {
    EXPECT_THROW((void)data::read_idx(images, classes, 10), FileError);
    return Bytes{};
  });
  EXPECT_LE(t.peak, 16_MiB);
}

}  // namespace
}  // namespace ebb::test
