#include "ebb/generate/generator.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "ebb/arena.h"
#include "ebb/error.h"
#include "ebb/ops.h"
#include "ebb/storage.h"
#include "generate/graphs.h"
#include "generate/rows.h"

namespace ebb::generate {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Arena of the larger program, and every constant and variable of either once.
Footprint footprint_of(const Plan& prefill, const Plan& decode, Bytes cache) {
  std::unordered_map<std::uint64_t, Bytes> leaves;
  Footprint f;
  for (const Plan* plan : {&prefill, &decode}) {
    f.arena = std::max(f.arena, plan->arena());
    for (const Buffer& buffer : plan->buffers)
      if (buffer.place.leaf)
        leaves[plan->leaves[buffer.place.leaf].node] =
            Storage::reservation(plan->device, buffer.size);
  }
  for (const auto& [node, bytes] : leaves) f.persistent += bytes;
  f.cache = cache;
  f.peak = f.arena + f.persistent;
  return f;
}

Options checked(Options options, const models::CausalLm& lm, Device device) {
  if (options.tokens == 0) options.tokens = lm.context();
  if (options.chunk == 0) options.chunk = default_chunk(device);
  if (options.sequences < 1)
    throw ValueError(fmt::format("[generate] at least one sequence must run at a time, but {} came",
                                 options.sequences));
  if (options.tokens < 2 || options.tokens > lm.context())
    throw ValueError(
        fmt::format("[generate] a sequence can have 2 to {} tokens, the model's context, but {} "
                    "came",
                    lm.context(), options.tokens));
  if (options.chunk < 1)
    throw ValueError(fmt::format(
        "[generate] a prompt is read 1 or more tokens at a time, but {} came", options.chunk));
  if (options.cache == nn::CacheForm::int8 && device.kind != Device::Kind::cpu)
    throw DTypeError(fmt::format(
        "[generate] keys and values in 8 bits are for the CPU: [cached_attention_int8] there is no "
        "kernel for dtype uint8 on device {}",
        to_string(device)));
  options.chunk = std::min(options.chunk, options.tokens);
  for (const std::int32_t id : options.end)
    if (id < 0 || id >= lm.vocabulary())
      throw ValueError(
          fmt::format("[generate] the id {} that ends a sequence is outside the "
                      "vocabulary of {}",
                      id, lm.vocabulary()));
  return options;
}

// Different sequences draw different numbers, regardless of the sequences that run beside them.
std::int64_t sequence_key(std::uint64_t seed, std::size_t request) {
  const Philox mix(RandomState{seed, 0}, RandomKey{0x67656e6572617465ull});
  const auto words = mix(request);
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(words[0]) << 32) | words[1]);
}

}  // namespace

std::int64_t default_chunk(Device device) { return device.kind == Device::Kind::cpu ? 64 : 128; }

struct Generator::State {
  nn::ModuleBase& module;
  models::CausalLm& lm;
  Options options;
  nn::KeyValueCache cache;
  GenerationState variables;
  Graph prefill_graph, decode_graph;
  Plan prefill_plan, decode_plan;
  Footprint footprint;
  std::shared_ptr<Arena> arena;
  std::optional<Program> prefill, decode;
  std::optional<Rows> rows;  // the state on the device, and its copy on the host
  Speed speed;

  State(nn::ModuleBase& m, models::CausalLm& l, Options o)
      : module(m),
        lm(l),
        options(checked(std::move(o), l, m.device())),
        cache(options.sequences, options.tokens, options.cache),
        variables(options.sequences, m.device()) {
    options.compile.plan.budget.reset();
    decode_graph = decode_step(lm, cache, variables, options.sampling);
    prefill_graph =
        prefill_step(lm, cache, variables, options.chunk, options.sampling, module.device());
    decode_plan = plan_program(decode_graph, options.compile);
    prefill_plan = plan_program(prefill_graph, options.compile);
    footprint = footprint_of(prefill_plan, decode_plan, cache.bytes());
    if (options.budget && footprint.peak > *options.budget)
      throw MemoryError(fmt::format(
          "[generate] {} sequences of {} tokens take {} bytes ({} of weights and state, {} of keys "
          "and values, {} of workspace), but the budget is {}: fewer sequences or tokens take less",
          options.sequences, options.tokens, footprint.peak.count,
          (footprint.persistent - footprint.cache).count, footprint.cache.count,
          footprint.arena.count, options.budget->count));
  }

  void allocate() {
    if (decode) return;
    CompileOptions compile = options.compile;
    arena = std::make_shared<Arena>(module.device(), compile.machine);
    arena->reserve(footprint.arena);  // once: growing later would move it
    compile.arena = arena;
    decode.emplace(decode_graph, decode_plan, compile);
    prefill.emplace(prefill_graph, prefill_plan, compile);
    rows.emplace(variables, options.chunk);
  }

  void check(std::span<const Request> requests) const {
    for (std::size_t r = 0; r < requests.size(); ++r) {
      const std::vector<std::int32_t>& prompt = requests[r].prompt;
      const auto length = static_cast<std::int64_t>(prompt.size());
      if (prompt.empty()) throw ValueError(fmt::format("[generate] prompt {} has no tokens", r));
      if (requests[r].max_tokens < 1)
        throw ValueError(
            fmt::format("[generate] request {}: max_tokens must be at least 1, but is "
                        "{}",
                        r, requests[r].max_tokens));
      if (length >= options.tokens)
        throw ValueError(fmt::format(
            "[generate] prompt {} has {} tokens, but a sequence can have {} with at least one "
            "generated",
            r, length, options.tokens));
      for (const std::int32_t id : prompt)
        if (id < 0 || id >= lm.vocabulary())
          throw ValueError(
              fmt::format("[generate] prompt {} has the id {}, outside the vocabulary of {}", r, id,
                          lm.vocabulary()));
    }
  }

  // Reads a whole prompt into a row and returns the first generated id.
  std::int32_t join(std::size_t row, std::size_t request, const std::vector<std::int32_t>& prompt) {
    const auto start = Clock::now();
    const auto length = static_cast<std::int64_t>(prompt.size());
    const std::int64_t key = sequence_key(options.seed, request);
    for (std::int64_t first = 0; first < length; first += options.chunk) {
      const std::int64_t count = std::min(options.chunk, length - first);
      rows->feed_prompt(*prefill, {prompt.data() + first, static_cast<std::size_t>(count)}, first,
                        row, key);
      prefill->run();
    }
    const std::int32_t id = rows->first_id();
    rows->start(row, id, static_cast<std::int32_t>(length), key);
    speed.prefill_seconds += since(start);
    speed.prefilled += length;
    return id;
  }
};

Generator::Generator(nn::ModuleBase& module, models::CausalLm& lm, Options options)
    : state_(std::make_unique<State>(module, lm, std::move(options))) {}
Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;

const Footprint& Generator::footprint() const { return state_->footprint; }
const Plan& Generator::prefill_plan() const { return state_->prefill_plan; }
const Plan& Generator::decode_plan() const { return state_->decode_plan; }
void Generator::allocate() { state_->allocate(); }
const Generator::Speed& Generator::speed() const { return state_->speed; }

double Generator::Speed::tokens_per_s() const {
  return decode_seconds > 0.0 ? static_cast<double>(decoded) / decode_seconds : 0.0;
}

Bytes Generator::resident() const {
  const State& s = *state_;
  if (!s.decode) return {};
  Bytes total = s.arena->resident();
  std::unordered_map<const Node*, Bytes> leaves;
  for (const Program* program : {&*s.prefill, &*s.decode})
    for (const auto& leaf : program->leaves()) leaves[leaf.get()] = leaf->storage()->resident();
  for (const auto& [node, bytes] : leaves) total += bytes;
  return total;
}

std::vector<Result> Generator::run(std::span<const Request> requests, const OnToken& on_token) {
  State& s = *state_;
  s.check(requests);
  s.allocate();
  s.speed = {};
  s.rows->clear();
  std::vector<Result> results(requests.size());
  for (std::size_t r = 0; r < requests.size(); ++r)
    results[r].ids.reserve(static_cast<std::size_t>(
        std::min(requests[r].max_tokens,
                 s.options.tokens - static_cast<std::int64_t>(requests[r].prompt.size()))));

  constexpr std::size_t nobody = static_cast<std::size_t>(-1);
  std::vector<std::size_t> runs(static_cast<std::size_t>(s.options.sequences), nobody);
  std::size_t next = 0, running = 0;
  bool stopped = false;

  // Adds an id to its sequence; returns whether the sequence goes on.
  const auto add = [&](std::size_t request, std::int32_t id) {
    Result& result = results[request];
    if (id < 0) return result.ended = Ended::not_finite, false;
    result.ids.push_back(id);
    const Continue told = on_token ? on_token(request, result.ids) : Continue::yes;
    stopped = stopped || told == Continue::stop_all;
    if (std::find(s.options.end.begin(), s.options.end.end(), id) != s.options.end.end())
      return result.ended = Ended::token, false;
    if (told == Continue::no) return result.ended = Ended::caller, false;
    const auto generated = static_cast<std::int64_t>(result.ids.size()),
               length = static_cast<std::int64_t>(requests[request].prompt.size());
    return generated < requests[request].max_tokens && length + generated < s.options.tokens;
  };

  while (!stopped && (next < requests.size() || running > 0)) {
    for (std::size_t row = 0; row < runs.size() && next < requests.size() && !stopped; ++row) {
      if (runs[row] != nobody) continue;
      const std::size_t request = next++;
      if (add(request, s.join(row, request, requests[request].prompt)))
        runs[row] = request, ++running;
      else
        s.rows->stop(row), --row;  // the row is still free for the next request
    }
    if (running == 0 || stopped) continue;
    const auto start = Clock::now();
    s.rows->send();
    s.decode->run();
    s.rows->receive();
    s.speed.decode_seconds += since(start);
    s.speed.decoded += static_cast<std::int64_t>(running);
    ++s.speed.steps;
    for (std::size_t row = 0; row < runs.size(); ++row)
      if (runs[row] != nobody && !add(runs[row], s.rows->id(row)))
        s.rows->stop(row), runs[row] = nobody, --running;
  }
  for (const std::size_t request : runs)
    if (request != nobody) results[request].ended = Ended::stopped;
  for (; next < requests.size(); ++next) results[next].ended = Ended::stopped;
  return results;
}

std::int64_t sequences_that_fit(nn::ModuleBase& module, models::CausalLm& lm,
                                const Options& options, Bytes budget, std::int64_t most) {
  const auto fits = [&](std::int64_t count) {
    Options tried = options;
    tried.sequences = count, tried.budget.reset();
    // Libraries are not measured for sizes that are only tried: unknown calls are planned with the
    // largest workspace.
    if (!tried.compile.plan.tuning) tried.compile.plan.tuning = std::make_shared<const Tuning>();
    return Generator(module, lm, tried).footprint().peak <= budget;
  };
  std::int64_t fit = 0, step = 1;
  while (fit + step <= most && fits(fit + step)) fit += step, step *= 2;
  for (; step > 0; step /= 2)
    if (fit + step <= most && fits(fit + step)) fit += step;
  return fit;
}

}  // namespace ebb::generate
