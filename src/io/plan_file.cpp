#include "ebb/io/plan_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/hash64.h"
#include "core/json.h"
#include "ebb/error.h"
#include "ebb/io/atomic_file.h"
#include "ebb/threads.h"
#include "ebb/version.h"
#include "io/attribute_json.h"
#include "io/json_file.h"
#include "io/plan_json.h"
#include "plan/check.h"
#include "plan/totals.h"

namespace ebb::io {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using Order = std::vector<std::shared_ptr<Node>>;

constexpr const char* format = "ebb-plan";
constexpr std::int64_t plan_version = 3;

// A short hash of every node: of its op, attributes, types and inputs.
std::vector<std::string> fingerprints(const Order& order) {
  std::unordered_map<const Node*, std::size_t> numbers;
  std::vector<std::string> all;
  for (const auto& node : order) {
    std::string text =
        fmt::format("{}{}", node->op().name(), json_text(attributes_json(node->attributes())));
    for (const Tensor& input : node->inputs())
      text += fmt::format(" {}.{}", numbers.at(input.node().get()), input.output());
    for (const TensorType& type : node->outputs()) text += fmt::format(" {}", to_string(type));
    numbers[node.get()] = all.size();
    all.push_back(hex(Hash64().add(text).value()).substr(0, 8));
  }
  return all;
}

OrderedJson machine_json(Device device) {
  if (device.kind == Device::Kind::cuda) return {{"kind", "cuda"}};
  return {{"kind", "cpu"}, {"threads", threads()}};
}

class Loading {
 public:
  Loading(const fs::path& path, const Graph& graph)
      : file_(path), order_(topological_order(graph)), graph_(graph) {}

  Plan run() {
    if (file_.text("format", "") != format) file_.fail("it is not a plan");
    if (const auto found = file_.integer("version", 0); found != plan_version)
      file_.fail(fmt::format("it has version {}, but this ebb reads {}", found, plan_version));
    compare_graph();
    compare_machine();
    try {
      return read();
    } catch (const FileError&) {
      throw;
    } catch (const Error& error) {
      file_.fail(error.what());
    }
  }

 private:
  void compare_graph() const {
    const auto saved = file_.json().find("graph");
    if (saved == file_.json().end() || !saved->is_array())
      file_.fail("\"graph\" must be a list of fingerprints");
    const std::vector<std::string> here = fingerprints(order_);
    for (std::size_t i = 0; i < here.size() && i < saved->size(); ++i)
      if ((*saved)[i] != here[i])
        file_.fail(fmt::format(
            "it was made for another graph: the first difference is at node {}, which is {} "
            "({}){} here",
            i, order_[i]->op().name(), order_[i]->attributes().text(),
            order_[i]->path().empty() ? "" : fmt::format(" at \"{}\"", order_[i]->path())));
    if (saved->size() != here.size())
      file_.fail(fmt::format("it was made for another graph: that has {} nodes, and this one {}",
                             saved->size(), here.size()));
  }

  void compare_machine() const {
    const Json here = parse_json(
        json_text(machine_json(order_.empty() ? device::cpu : order_.front()->device())));
    const auto saved = file_.json().find("machine");
    if (saved == file_.json().end() || !saved->is_object())
      file_.fail("\"machine\" must be an object");
    for (const auto& [field, value] : here.items())
      if (const auto found = saved->find(field); found == saved->end() || *found != value)
        file_.fail(fmt::format("it was made for another machine: {} was {} and is {} here", field,
                               found == saved->end() ? "not told" : json_excerpt(*found),
                               json_excerpt(value)));
  }

  Plan read() const {
    const auto tables = file_.json().find("plan");
    if (tables == file_.json().end()) file_.fail("\"plan\" is missing");
    Plan plan = plan_from_json(*tables, order_);
    compare_leaves(plan);
    check_plan(plan);
    planning::add_up(plan);
    // The file must not contain anything that was not read, or was read as something else.
    const Json again = parse_json(json_text(plan_json(plan, order_)));
    if (again != *tables)
      file_.fail(fmt::format("{} is not part of a plan",
                             Json::diff(*tables, again).front()["path"].get<std::string>()));
    if (const auto peak = file_.integer("peak_bytes", 0); peak != plan.peak.count)
      file_.fail(fmt::format("it tells a peak of {} bytes, but its buffers take {}", peak,
                             plan.peak.count));
    return plan;
  }

  // Leaves, inputs and outputs must be those of the graph.
  void compare_leaves(const Plan& plan) const {
    const Leaves nodes = leaves_of(plan, graph_);
    for (std::size_t l = 0; l < nodes.size(); ++l) {
      const Leaf& leaf = plan.leaves[LeafId(l)];
      const bool variable = nodes[l]->op().name() == "variable";
      if (leaf.type != nodes[l]->outputs().front() || leaf.path != nodes[l]->path() ||
          variable != (leaf.kind == Leaf::Kind::variable))
        file_.fail(fmt::format("leaf {} is \"{}\" ({}), but \"{}\" ({}) in the graph", l, leaf.path,
                               to_string(leaf.type), nodes[l]->path(),
                               to_string(nodes[l]->outputs().front())));
      for (std::size_t k = 0; k < l; ++k)
        if (nodes[k] == nodes[l])
          file_.fail(fmt::format("leaves {} and {} are the same tensor", k, l));
    }
    const auto compare = [&](const char* what, const std::vector<Port>& ports,
                             const std::vector<Tensor>& tensors) {
      bool same = ports.size() == tensors.size();
      for (std::size_t i = 0; same && i < ports.size(); ++i)
        same = ports[i].type == tensors[i].type();
      if (!same) file_.fail(fmt::format("the {} are not the graph's", what));
    };
    compare("inputs", plan.inputs, graph_.inputs);
    compare("outputs", plan.outputs, graph_.outputs);
  }

  JsonFile file_;
  Order order_;
  const Graph& graph_;
};

}  // namespace

void save_plan(const Plan& plan, const Graph& graph, const fs::path& path) {
  const Order order = topological_order(graph);
  const OrderedJson all{{"format", format},
                        {"version", plan_version},
                        {"ebb", ebb::version()},
                        {"machine", machine_json(plan.device)},
                        {"peak_bytes", plan.peak.count},
                        {"predicted_ms", plan.predicted_ms},
                        {"graph", fingerprints(order)},
                        {"plan", plan_json(plan, order)}};
  AtomicFile file(path);
  file.write(json_text(all) + "\n");
  file.commit();
}

Plan load_plan(const fs::path& path, const Graph& graph) { return Loading(path, graph).run(); }

}  // namespace ebb::io
