// examples/learning_by_ignoring/main.cpp: three levels, two paths. A model is pretrained on
// weighted source data and finetuned on a few target points that pull away from it; the weights of
// the source data follow the loss on other target points (the structure of Zhang et al., 2021).
#include <ebb/ebb.h>

#include <cstdlib>
#include <iostream>

using namespace ebb;

constexpr std::int64_t features = 20, source_items = 200;

Tensor normal(const Shape& shape, std::uint64_t key) {
  return random_normal(shape, 0.0, 1.0, f32, device::cpu, RandomKey{key});
}

// Labels by a fixed direction; those of the first `wrong` items are turned round.
Batch points(std::int64_t count, std::int64_t wrong, std::uint64_t key) {
  const Tensor x = eval(normal({count, features}, key));
  const Tensor right =
      greater(reshape(matmul(x, normal({features, 1}, 900)), {-1}), zeros({count}));
  const Tensor turned = less(arange(count), full({count}, static_cast<double>(wrong), i64));
  return {{x, eval(cast(not_equal(right, turned), f32))}};
}

struct WholeSet : mlo::Problem {
  WholeSet(const char* name, nn::ModuleBase& module, const optim::Optimizer& optimizer,
           const mlo::Config& config, Batch all)
      : Problem(name, module, optimizer, {config, optim::constant(), {}}), set(std::move(all)) {}
  Batch get_batch() override { return set; }
  std::vector<TensorType> batch_types() const override { return set.types(); }
  nn::Linear& net(const char* of) const { return static_cast<nn::Linear&>(other(of).module()); }
  Tensor losses(const char* of, const Batch& b, Reduction reduction = Reduction::mean) const {
    return bce_with_logits(reshape(net(of)(b.x()), {-1}), b.y(), reduction);
  }
  Batch set;
};

struct Ignoring : nn::Module<Ignoring> {
  Variable scores = parameter("scores", {source_items}, nn::Initial::constant(0.0));
  Tensor weights() const { return sigmoid(scores); }
};

struct Pretrain : WholeSet {
  using WholeSet::WholeSet;
  mlo::StepOutput training_step(const Batch& b) override {
    const Tensor weights = static_cast<Ignoring&>(other("reweight").module()).weights();
    return mean(weights * losses("pretrain", b, Reduction::none)) +
           sum_squares(net("pretrain").weight) * 0.01;
  }
};

struct Finetune : WholeSet {
  using WholeSet::WholeSet;
  mlo::StepOutput training_step(const Batch& b) override {
    return losses("finetune", b) +
           sum_squares(net("finetune").weight - net("pretrain").weight) * 0.5;
  }
};

// Reads both models: one path comes through finetuning, one directly from pretraining.
struct Reweight : WholeSet {
  using WholeSet::WholeSet;
  mlo::StepOutput training_step(const Batch& b) override {
    return losses("finetune", b) + losses("pretrain", b) * 0.5;
  }
};

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 1500;
  const auto linear = [] { return nn::Linear(nn::root_place(), features, 1, nn::Bias::no); };
  nn::Linear source_net = linear(), target_net = linear();
  Ignoring ignoring;
  const Batch source = points(source_items, source_items / 2, 1);
  const mlo::Config by_cg{.type = mlo::Method::cg, .unroll_steps = 5, .cg_iterations = 5};
  Pretrain pretrain("pretrain", source_net, optim::SGD{.lr = 0.5}, by_cg, source);
  Finetune finetune("finetune", target_net, optim::SGD{.lr = 0.5},
                    {.type = mlo::Method::cg, .cg_iterations = 5}, points(20, 0, 2));
  Reweight reweight("reweight", ignoring, optim::Adam{.lr = 0.05}, {}, points(100, 0, 3));
  mlo::Engine engine({&reweight, &finetune, &pretrain},
                     {.u2l = {{"reweight", {"pretrain"}}},
                      .l2u = {{"pretrain", {"finetune", "reweight"}}, {"finetune", {"reweight"}}}});

  EvalStep test(target_net,
                [&](const Batch& b) { return std::vector{finetune.losses("finetune", b)}; });
  const Batch unseen = points(2000, 0, 4);
  for (int i = 0; i < 50; ++i) engine.train_step();
  const double first = test(unseen)[0];
  for (int i = 50; i < steps; ++i) engine.train_step();
  double wrong = 0.0, right = 0.0;
  const std::vector<float> weights = ignoring.weights().to_vector<float>();
  for (std::size_t i = 0; i < weights.size(); ++i)
    (i < source_items / 2 ? wrong : right) += weights[i] / (source_items / 2.0);
  const double last = test(unseen)[0];
  std::cout << "test loss " << first << " early, " << last << " at last\n"
            << "mean weight of source items with right labels " << right << ", with wrong ones "
            << wrong << "\n";
  return right > wrong + 0.3 && last < first ? 0 : 1;
}
