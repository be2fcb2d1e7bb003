// examples/finetune.cpp: trains a GPT-2 folder on a token file and writes a folder others can read.
#include <ebb/ebb.h>

#include <iostream>

using namespace ebb;

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: finetune MODEL_FOLDER TOKENS.bin OUTPUT_FOLDER\n";
    return 2;
  }
  try {
    const auto model = io::load_gpt2(argv[1], device::cpu, f32);
    const auto tokens =
        data::TokenStream::file(argv[2], data::TokenWidth::int32, model->vocabulary());
    const auto windows = std::make_shared<data::WindowDataset>(
        tokens, data::WindowOptions{.sequence = model->context()});
    data::Loader loader(windows, {.batch = 2, .last = data::LastBatch::drop});

    TrainOptions options;
    options.schedule = optim::linear_warmup(5, optim::cosine(15));
    options.clip_norm = 1.0;
    TrainStep step(
        *model, optim::AdamW{.lr = 1e-3}, [&](const Batch& b) { return model->loss(b.x(), b.y()); },
        options);
    for (int i = 1; i <= 20; ++i) {
      const StepResult result = step(loader.next());
      if (i % 5 == 0) std::cout << "step " << i << ", loss " << result.loss << "\n";
    }
    io::save(*model, argv[3]);
  } catch (const Error& error) {
    std::cerr << "finetune: " << error.what() << "\n";
    return 1;
  }
}
