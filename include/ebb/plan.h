// A plan: the order of all instructions and the place of every byte, as plain data in tables.
#pragma once

#include <array>
#include <iosfwd>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ebb/error.h"
#include "ebb/graph.h"
#include "ebb/id.h"
#include "ebb/node.h"
#include "ebb/op.h"
#include "ebb/rates.h"
#include "ebb/recompute.h"
#include "ebb/storage.h"
#include "ebb/tier.h"
#include "ebb/tuning.h"

namespace ebb {

// Bytes by category, indexed by Category.
struct CategoryBytes {
  std::array<Bytes, category_count> values{};
  Bytes& operator[](Category c) { return values[static_cast<std::size_t>(c)]; }
  Bytes operator[](Category c) const { return values[static_cast<std::size_t>(c)]; }
  Bytes total() const;
};

struct Space;
struct Lane;
struct Leaf;
struct Value;
struct Buffer;
struct Instruction;
using SpaceId = Id<Space>;
using LaneId = Id<Lane>;
using LeafId = Id<Leaf>;
using ValueId = Id<Value>;
using BufferId = Id<Buffer>;
using InstructionId = Id<Instruction>;

// A block of memory, or a file, that buffers are laid out in. The first space of a plan is the
// arena, in the device's own memory.
struct Space {
  Bytes size = {};  // in whole pages
  PageSize pages = PageSize::standard;
  Tier tier = Tier::device;
  Bytes alignment = buffer_alignment;  // of offsets and sizes; transfers to a file need more
};
inline constexpr SpaceId arena_space{0};
// The alignment of buffers in files, and of buffers that are read from files or written to them.
inline constexpr Bytes file_alignment = 4_KiB;
// The size of a constant's or a variable's buffer.
Bytes leaf_size(const TensorType& type, Tier tier);

// A queue of instructions. Those of one lane run in order; different lanes run concurrently.
struct Lane {
  enum class Kind : std::uint8_t {
    compute,  // all instructions that are in no other lane
    beside,   // updates, and sums that only updates read: nothing in lane `compute` waits for them
    store,    // copies from the device to other tiers
    fetch,    // copies from other tiers to the device
  };
  Kind kind = Kind::compute;
};

// A constant or a variable of the graph. It owns its bytes, which persist between runs.
struct Leaf {
  enum class Kind : std::uint8_t { constant, variable };
  Kind kind = Kind::variable;
  std::string path;
  TensorType type;
  ValueId value;             // what it holds when the step begins
  std::uint64_t node = 0;    // Node::id: the same leaf has the same one in all plans of a process
  Tier tier = Tier::device;  // where its bytes are between instructions that use them
};

// A result of one instruction, or what a leaf or an input holds when the step begins.
struct Value {
  TensorType type;
  InstructionId maker;  // none for leaves and inputs
};

// Where the bytes of a buffer are. Exactly one of `space`, `leaf` and `output` is set.
struct Place {
  SpaceId space;      // at `offset` in this space
  Bytes offset = {};  // only with `space`
  LeafId leaf;        // in the memory of this constant or variable
  int output = -1;    // in the memory of this output of the program
};

// A range of memory and its live range, in instructions.
struct Buffer {
  Bytes size = {};
  Category category = Category::activations;
  InstructionId first, last;  // live range, both ends included
  Place place;
  std::string path;     // module path of the node that uses it first
  std::string_view op;  // that node's op

  bool in_arena() const { return place.space == arena_space; }
};

// Whether two buffers have bytes of a space in common.
bool share_bytes(const Buffer& a, const Buffer& b);

// A tensor that an instruction reads or writes: a value, and its strides and offset in a buffer.
struct Operand {
  ValueId value;
  BufferId buffer;
  Layout layout;
  TensorType type;

  Arg arg() const { return {type, layout.strides, layout.offset}; }
};

// An input or output of the program.
struct Port {
  ValueId value;
  BufferId buffer;
  TensorType type;
};

struct Instruction {
  const Op* op = nullptr;
  Attributes attributes;
  std::string path;  // of the module that added the node
  Marks marks;
  std::vector<Operand> inputs, outputs;
  BufferId workspace;                 // none if the kernel needs no workspace
  std::vector<InPlace> overwritable;  // pairs that may share a buffer if the input dies here
  Work work = Work::elementwise;
  double predicted_ms = 0.0;
  bool recomputed = false;  // repeats the work of an earlier instruction
  LaneId lane{0};
  std::vector<InstructionId> waits;  // instructions of other lanes that must have ended first
};

enum class Release : std::uint8_t {
  at_end,  // all buffers but workspaces live until the step ends, as without liveness analysis
  early,   // a buffer is freed after its last reader, and ops may write over inputs that die
};

// When variables are updated.
enum class UpdateTiming : std::uint8_t {
  last,   // in the order in which the graph was built: all gradients, then all updates
  early,  // each as soon as its gradient exists, so that few gradients are live at once
};

// How long the automatic strategy searches.
enum class Effort : std::uint8_t {
  quick,     // the fastest of a few descents to the budget, without unneeded recomputation
  thorough,  // improves that plan by local search: takes fractions of a second
};

// Memory outside the device that a plan may use.
struct OffloadOptions {
  ByTier<Bytes> budgets = {};  // of tiers other than the device; 0: a tier is not used
  // What may be there.
  bool state = true, weights = true, activations = true;
  Bytes smallest = 64_KiB;  // smaller tensors stay: copying them costs more than it frees
  // The tiers of variables, by Node::id, that another plan has decided. Those of variables that a
  // program uses already (Node::tier) are decided in any case.
  std::unordered_map<std::uint64_t, Tier> homes = {};

  bool any() const { return budgets[Tier::host] > Bytes{} || budgets[Tier::disk] > Bytes{}; }
};

struct PlanOptions {
  Release release = Release::early;
  UpdateTiming updates = UpdateTiming::early;
  Recompute recompute = {};          // with a budget, the default stands for `automatic`
  std::optional<Bytes> budget = {};  // limit of `Plan::peak`; BudgetError if no plan keeps it
  Rates rates = {};                  // of the device the plan is for
  Effort effort = Effort::thorough;
  PageSize pages = PageSize::standard;  // the arena is rounded up to whole pages
  // Runs float32 products and convolutions on a GPU's tensor cores: factors are rounded to 11
  // significant bits, sums stay float32. Several times as fast.
  bool tf32 = false;
  // Measured algorithms of the device's libraries. Null: none are known, and every workspace gets
  // its upper bound. Compiling for a device of this machine measures them first (see `tune`).
  std::shared_ptr<const Tuning> tuning = {};
  // On a GPU, 2 runs updates, and sums that only updates read, on a second stream. This changes
  // neither results nor peak memory.
  int lanes = 2;
  OffloadOptions offload = {};
};

// One recomputation: an instruction that runs again instead of having its outputs kept.
struct Decision {
  std::string path, op;  // of the instruction
  Bytes bytes;           // of the outputs that are read after the second run
  InstructionId computed_at, recomputed_at;
  double recompute_ms = 0.0;  // of the instruction alone, without its inputs'
};

struct Plan {
  Device device;  // of every instruction and buffer
  bool tf32 = false;
  std::vector<std::string> passes;  // names of the passes that the graph went through, in order
  Tuning tuning;                    // entries for the library calls of its instructions, if known
  Table<Space> spaces;
  Table<Lane> lanes;
  Table<Leaf> leaves;
  Table<Value> values;
  Table<Buffer> buffers;
  Table<Instruction> instructions;
  std::vector<Port> inputs, outputs;

  // Bytes that a step moves between the device and each other tier.
  struct Moved {
    Bytes fetched, stored;
  };
  ByTier<Moved> moved;
  ByTier<Bytes> held;  // bytes planned in each tier: variables, and buffers of a step

  Bytes live_peak;        // most transient bytes live at once: a lower bound of any arena
  Bytes persistent;       // constants, variables and outputs, in whole pages
  Bytes peak;             // arena() + persistent: the memory of the device
  CategoryBytes at_peak;  // bytes live at `peak_instruction`, persistent ones included
  InstructionId peak_instruction{0};

  double predicted_ms = 0.0;           // of one step
  double predicted_keep_all_ms = 0.0;  // the same without any recomputation
  std::vector<Decision> decisions;     // recomputations, largest tensors first

  double made_in_ms = 0.0;  // time of passes, tuning where needed, and planning

  Bytes arena() const;  // the memory of the device for buffers that live only in a step
  // Where a buffer's bytes are, and whether it takes memory of the device outside the arena.
  Tier tier_of(const Buffer& buffer) const;
  bool persists(const Buffer& buffer) const {
    return !buffer.place.space && tier_of(buffer) == Tier::device;
  }
  bool runs_beside(const Instruction& instruction) const {
    return lanes[instruction.lane].kind == Lane::Kind::beside;
  }
  double fragmentation() const;  // arena() ÷ live_peak
  double overhead() const;       // predicted_ms ÷ predicted_keep_all_ms
  int recomputed_nodes() const;  // number of instructions with `recomputed`
};

// A budget that a plan keeps, and the time of that plan.
struct KeptBudget {
  Bytes bytes;
  double overhead = 1.0;  // Plan::overhead()
};

inline constexpr double fast_overhead = 1.5;
struct LeastBudgets {
  KeptBudget least;  // the smallest budget found that a plan keeps
  KeptBudget fast;   // the smallest one found whose overhead is at most `fast_overhead`
};

// Thrown when no plan was found that keeps the budget.
class BudgetError : public MemoryError {
 public:
  BudgetError(Bytes budget, const LeastBudgets& kept);
  Bytes budget, least;  // the budget asked for, and the smallest one that can be kept
  LeastBudgets kept;    // the smallest one, and the smallest fast one
};

// The tiers of the plan's variables, for OffloadOptions::homes of a plan that shares them.
std::unordered_map<std::uint64_t, Tier> homes_of(const Plan& plan);

// The nodes of the constants and variables in `plan.leaves`, in the same order.
using Leaves = std::vector<std::shared_ptr<Node>>;
Leaves leaves_of(const Plan& plan, const Graph& graph);

// Plans a graph that has gone through `insert_copies`: every kernel can read its inputs' layouts.
Plan make_plan(const Graph& graph, const PlanOptions& options = {});

// A plan, or the smallest budget that can be kept.
struct PlanResult {
  std::optional<Plan> plan;
  std::optional<KeptBudget> least;  // set if there is no plan because the budget is too small
};
// Like make_plan, but a budget that cannot be kept is no exception. If even keeping all tensors
// takes `faster_than` milliseconds or more, both fields of the result are empty.
PlanResult try_plan(const Graph& graph, const PlanOptions& options,
                    double faster_than = std::numeric_limits<double>::infinity());

// The smallest budget that `make_plan` can keep for this graph; and with it, the smallest fast one.
Bytes least_budget(const Graph& graph, const PlanOptions& options);
LeastBudgets least_budgets(const Graph& graph, const PlanOptions& options,
                           std::optional<KeptBudget> known_least = {});

// "the smallest that can is ... bytes, at 2.10 × the time of keeping all; ... is enough for 1.45
// ×".
std::string to_string(const LeastBudgets& budgets);
// A readable summary: peak, categories, arena and fragmentation.
std::string to_string(const Plan& plan);
std::ostream& operator<<(std::ostream& out, const Plan& plan);

}  // namespace ebb
