// What making and loading a model takes, by the operating system's word: its size, and at most one
// tensor beside it.
#include <gtest/gtest.h>

#include <fstream>

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

// Starts the high-water mark anew; false where that is not allowed.
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

// What the process grew by at most while `use` ran, and what the model then holds.
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
    // Threads and their buffers are there before anything is measured.
    (void)eval(random_normal({512, 512}, 0.0, 1.0));
  }
};

// A few pages of code and small allocations come and go.
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

TEST_P(Loading, TakesTheModelAndAtMostOneTensor) {
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
  EXPECT_LE(t.peak, t.model + width * width * size_of(f32) + slack);
  RecordProperty("model_bytes", std::to_string(t.model.count));
  RecordProperty("peak_bytes", std::to_string(t.peak.count));
  // The values are those of the file, rounded once.
  const io::SafetensorsFile file(path);
  const nn::NamedVariable last = model.parameters().back();
  const float* from = reinterpret_cast<const float*>(file.at(last.path).bytes.data());
  const std::vector<float> to = cast(last.variable, f32).to_vector<float>();
  for (std::size_t i = 0; i < to.size(); i += 997)
    ASSERT_EQ(to[i], dtype == f32 ? from[i] : static_cast<float>(BFloat16(from[i])));
}

INSTANTIATE_TEST_SUITE_P(Precisions, Loading, ::testing::Values(f32, bf16),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace ebb::test
