// Folders made by transformers (tools/make_model_folders.py) give its losses, and what ebb writes
// it reads again. Fields of config.json are in hugging_face_fields_test.cpp.
#include "ebb/io/hugging_face.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "ebb/train/train_step.h"
#include "support/model_folders.h"
#include "support/op_check.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

TEST(HuggingFace, LossesAreThoseOfTransformers) {
  for (const char* name : {"gpt2", "llama", "bert", "gpt2-own-head", "llama-shards"}) {
    // float32 keeps about seven digits, and a loss is a sum of thousands of terms.
    EXPECT_NEAR(folder_loss(golden_models / name, f32), golden_loss(name), 1e-5) << name;
    // transformers turns Llama's heads by angles rounded to float32, whatever the model's dtype.
    EXPECT_NEAR(folder_loss(golden_models / name, f64), golden_loss(name),
                name[0] == 'l' ? 1e-7 : 1e-9)
        << name;
  }
}

// The same tensors, bit for bit, in two folders of one file each.
void expect_same_tensors(const fs::path& before_folder, const fs::path& after_folder) {
  const io::SafetensorsFile before(before_folder / "model.safetensors"),
      after(after_folder / "model.safetensors");
  ASSERT_EQ(before.entries().size(), after.entries().size()) << after_folder;
  for (const auto& [tensor, entry] : before.entries()) {
    EXPECT_EQ(entry.type, after.at(tensor).type) << tensor;
    EXPECT_EQ(before.bytes(tensor), after.bytes(tensor)) << tensor;
  }
}

void save_again(const fs::path& from, const fs::path& to, DType dtype = f32) {
  const std::string type = io::model_type(from);
  if (type == "gpt2") io::save(*io::load_gpt2(from, device::cpu, dtype), to);
  if (type == "llama") io::save(*io::load_llama(from, device::cpu, dtype), to);
  if (type == "bert") io::save(*io::load_bert(from, device::cpu, dtype), to);
}

TEST(HuggingFace, WrittenFoldersReadBackToTheBit) {
  const TemporaryFolder folder;
  for (const char* name : {"gpt2", "llama", "bert", "gpt2-own-head", "llama-shards"}) {
    save_again(golden_models / name, folder / name);
    if (fs::exists(golden_models / name / "model.safetensors"))
      expect_same_tensors(golden_models / name, folder / name);
    EXPECT_EQ(read_json(folder / name / "config.json"),
              read_json(golden_models / name / "config.json"));
    EXPECT_EQ(folder_loss(folder / name, f32), folder_loss(golden_models / name, f32)) << name;
  }
}

TEST(HuggingFace, SavingWritesBackWhatWasRead) {
  const TemporaryFolder out;
  std::map<std::string, Json> fields;  // of all variants; later ones stand
  for (const Json& row : read_json(golden_models / "variants.json"))
    fields[row["model"]].update(row["fields"]);
  for (const auto& [model, changes] : fields) {
    FolderCopy folder(model);
    folder.set(changes).set({{"bos_token_id", 7}, {"torch_dtype", "bfloat16"}});
    save_again(folder.path(), out / model, f16);
    Json read = read_json(folder.path() / "config.json"),
         written = read_json(out / model / "config.json");
    EXPECT_EQ(written["dtype"], "float16");
    EXPECT_FALSE(written.contains("torch_dtype"));
    // The variants make BERT untied. Llama they tie, but its folder has a head of its own.
    EXPECT_EQ(written["tie_word_embeddings"] == false, model != "gpt2") << model;
    for (const char* field : {"dtype", "torch_dtype", "tie_word_embeddings"})
      read.erase(field), written.erase(field);
    EXPECT_EQ(written, read);
  }
}

TEST(HuggingFace, ModelsOfOwnMakingComeBackWithTheirConfig) {
  const TemporaryFolder out;
  models::Gpt2Config gpt2{.vocabulary = 11, .context = 8, .layers = 2, .heads = 2, .width = 8};
  gpt2.dropout.embedding = 0.1, gpt2.dropout.attention = 0.2, gpt2.dropout.residual = 0.3;
  gpt2.hidden = 12, gpt2.activation = nn::Activation::mish, gpt2.tied = false;
  gpt2.scale_attention = false, gpt2.scale_by_inverse_layer = true, gpt2.eps = 0.25;
  io::save(make<models::Gpt2>(device::cpu, f32, gpt2), out / "gpt2");
  const auto g = io::load_gpt2(out / "gpt2", device::cpu, f32);
  EXPECT_EQ(g->config().dropout.embedding, 0.1);
  EXPECT_EQ(g->config().dropout.attention, 0.2);
  EXPECT_EQ(g->config().dropout.residual, 0.3);
  EXPECT_EQ(g->config().hidden, 12);
  EXPECT_EQ(g->config().activation, nn::Activation::mish);
  EXPECT_FALSE(g->config().tied || g->config().scale_attention);
  EXPECT_TRUE(g->config().scale_by_inverse_layer);
  EXPECT_EQ(g->config().eps, 0.25);

  models::LlamaConfig llama{.vocabulary = 11,
                            .width = 8,
                            .hidden = 12,
                            .layers = 1,
                            .heads = 2,
                            .key_value_heads = 1,
                            .context = 8};
  llama.head_size = 6, llama.attention_dropout = 0.2, llama.activation = nn::Activation::gelu;
  llama.attention_bias = llama.mlp_bias = llama.tied = true, llama.padding = 3;
  llama.rope_base = 700.0;
  io::save(make<models::Llama>(device::cpu, f32, llama), out / "llama");
  const auto l = io::load_llama(out / "llama", device::cpu, f32);
  EXPECT_EQ(l->config().head_size, 6);
  EXPECT_EQ(l->config().attention_dropout, 0.2);
  EXPECT_EQ(l->config().activation, nn::Activation::gelu);
  EXPECT_TRUE(l->config().attention_bias && l->config().mlp_bias && l->config().tied);
  EXPECT_EQ(l->config().padding, 3);
  EXPECT_EQ(l->config().rope_base, 700.0);

  models::BertConfig bert{.vocabulary = 11,
                          .width = 8,
                          .layers = 1,
                          .heads = 2,
                          .hidden = 12,
                          .context = 8,
                          .types = 3,
                          .classes = 1};
  bert.dropout.hidden = 0.1, bert.dropout.attention = 0.2, bert.dropout.classifier = 0.3;
  bert.activation = nn::Activation::relu, bert.task = models::BertTask::regression;
  bert.initial_deviation = 0.5;
  io::save(make<models::BertClassifier>(device::cpu, f32, bert), out / "bert");
  const auto b = io::load_bert(out / "bert", device::cpu, f32);
  EXPECT_EQ(b->config().dropout.hidden, 0.1);
  EXPECT_EQ(b->config().dropout.attention, 0.2);
  EXPECT_EQ(b->config().dropout.classifier, 0.3);
  EXPECT_EQ(b->config().activation, nn::Activation::relu);
  EXPECT_EQ(b->config().task, models::BertTask::regression);
  EXPECT_EQ(b->config().initial_deviation, 0.5);
  EXPECT_FALSE(b->config().padding);
  EXPECT_EQ(b->config().classes, 1);
  EXPECT_TRUE(b->origin().initialised.empty());
}

TEST(HuggingFace, HalfPrecisionModelsAreMadeAtTheirPrecision) {
  const auto model = io::load_gpt2(golden_models / "gpt2", device::cpu, bf16);
  for (const nn::NamedVariable& p : model->parameters())
    EXPECT_EQ(p.variable.dtype(), bf16) << p.path;
  EXPECT_NEAR(causal_loss(*model), golden_loss("gpt2"), 0.1);  // eight bits of mantissa
}

// The behaviour of transformers for each combination of the flag and the tensors.
TEST(HuggingFace, HeadsAreTiedAsTheTensorsSay) {
  struct Family {
    const char *model, *embedding;
  };
  constexpr const char* head = "lm_head.weight";
  for (const Family& family :
       {Family{"gpt2", "transformer.wte.weight"}, {"llama", "model.embed_tokens.weight"}}) {
    const bool tied_by_default = family.model == std::string("gpt2");
    const auto prepare = [&](FolderCopy& folder, const char* tensors, const Json& flag) {
      folder.change_tensors([&](FolderCopy::Tensors& t) {
        const Tensor table = t.at(family.embedding);
        t.erase(head);
        if (tensors == std::string("equal")) t[head] = table;
        if (tensors == std::string("other"))
          t[head] = concat({slice(table, 0, 1, 61), slice(table, 0, 0, 1)}, 0);
        if (tensors == std::string("head alone")) t[head] = table, t.erase(family.embedding);
      });
      flag.is_null() ? folder.remove("tie_word_embeddings")
                     : folder.set({{"tie_word_embeddings", flag}});
    };
    const auto heads = [&](const fs::path& path) {  // of the model that was read
      const auto lm = io::load_causal_lm(path, device::cpu, f32);
      return std::ranges::count(lm.module->parameters(), std::string(head),
                                &nn::NamedVariable::path);
    };
    FolderCopy other(family.model), equal(family.model);
    prepare(other, "other", false), prepare(equal, "equal", true);
    const double other_loss = folder_loss(other.path(), f32),
                 tied_loss = folder_loss(equal.path(), f32);
    EXPECT_NE(other_loss, tied_loss);
    for (const Json& flag : {Json(true), Json(false), Json()}) {
      const bool tied = flag.is_null() ? tied_by_default : flag.get<bool>();
      for (const char* tensors : {"none", "equal", "other", "head alone"}) {
        SCOPED_TRACE(std::string(family.model) + " " + tensors + " " + flag.dump());
        FolderCopy folder(family.model);
        prepare(folder, tensors, flag);
        const bool has_head = tensors != std::string("none");
        if (!tied && (!has_head || tensors == std::string("head alone"))) {
          expect_error(
              [&] { (void)folder_loss(folder.path(), f32); },
              {has_head ? family.embedding : "tie_word_embeddings", has_head ? "no tensor" : head});
          continue;
        }
        const bool own = tensors == std::string("other") || !tied;
        EXPECT_EQ(heads(folder.path()), own ? 1 : 0);
        EXPECT_EQ(folder_loss(folder.path(), f32),
                  tensors == std::string("other") ? other_loss : tied_loss);
        // Written again, it is the same model, and its config says so.
        const TemporaryFolder out;
        save_again(folder.path(), out / "saved");
        EXPECT_EQ(read_json(out / "saved" / "config.json")["tie_word_embeddings"], !own);
        EXPECT_EQ(folder_loss(out / "saved", f32), folder_loss(folder.path(), f32));
      }
    }
  }
}

TEST(HuggingFace, AHeadOfItsOwnIsTrained) {
  const auto model = io::load_gpt2(golden_models / "gpt2-own-head", device::cpu, f32);
  const auto values = [&](const char* path) {
    for (const nn::NamedVariable& p : model->parameters())
      if (p.path == path) return p.variable.to_vector<float>();
    return std::vector<float>();
  };
  const auto head = values("lm_head.weight"), table = values("transformer.wte.weight");
  ASSERT_FALSE(head.empty());
  const auto part = [](std::int64_t from, std::int64_t to) {
    return Tensor::from(slice(tokens(), 1, from, to).to_vector<std::int64_t>(), {2, 11});
  };
  TrainStep step(*model, optim::SGD{.lr = 0.1},
                 [&](const Batch& b) { return model->loss(b.x(), b.y()); });
  step(Batch{{part(0, 11), part(1, 12)}});
  EXPECT_NE(values("lm_head.weight"), head);
  EXPECT_NE(values("transformer.wte.weight"), table);
}

TEST(HuggingFace, OldNamesOfNormsAndMissingPrefixes) {
  FolderCopy bert("bert");
  bert.change_tensors([](FolderCopy::Tensors& t) {
    FolderCopy::Tensors renamed;
    for (auto& [name, tensor] : t) {
      std::string old = name;
      if (old.ends_with("LayerNorm.weight")) old.replace(old.size() - 6, 6, "gamma");
      if (old.ends_with("LayerNorm.bias")) old.replace(old.size() - 4, 4, "beta");
      renamed[old] = tensor;
    }
    t = renamed;
  });
  EXPECT_EQ(folder_loss(bert.path(), f32), folder_loss(golden_models / "bert", f32));
  bert.change_tensors([](FolderCopy::Tensors& t) {
    t["bert.embeddings.LayerNorm.weight"] = t["bert.embeddings.LayerNorm.gamma"];
  });
  expect_error([&] { (void)folder_loss(bert.path(), f32); },
               {"model.safetensors", "LayerNorm.weight", "LayerNorm.gamma"});

  for (const auto& [model, prefix] :
       {std::pair{"gpt2", "transformer."}, {"llama", "model."}, {"bert", "bert."}}) {
    FolderCopy folder(model);
    folder.change_tensors([&](FolderCopy::Tensors& t) {
      FolderCopy::Tensors bare;
      for (auto& [name, tensor] : t)
        bare[name.starts_with(prefix) ? name.substr(std::string(prefix).size()) : name] = tensor;
      t = bare;
    });
    EXPECT_EQ(folder_loss(folder.path(), f32), folder_loss(golden_models / model, f32)) << model;
  }
}

TEST(HuggingFace, AnEncoderIsAStart) {
  FolderCopy folder("bert");
  folder.set({{"initializer_range", 0.0}}).change_tensors([](FolderCopy::Tensors& t) {
    t.erase("classifier.weight"), t.erase("classifier.bias");
    t["cls.seq_relationship.weight"] = zeros({2, 16});
    t["cls.predictions.transform.LayerNorm.gamma"] = zeros({16});
  });
  const auto model = io::load_bert(folder.path(), device::cpu, f32);
  using Names = std::vector<std::string>;
  EXPECT_EQ(model->origin().initialised, (Names{"classifier.weight", "classifier.bias"}));
  EXPECT_EQ(model->origin().unused,
            (Names{"cls.predictions.transform.LayerNorm.gamma", "cls.seq_relationship.weight"}));
  EXPECT_EQ((*model)(tokens()).to_vector<float>(), std::vector<float>(6));  // deviation 0
  const TemporaryFolder out;
  io::save(*model, out / "start");
  EXPECT_TRUE(io::load_bert(out / "start", device::cpu, f32)->origin().initialised.empty());

  folder.change_tensors([](FolderCopy::Tensors& t) {
    t.erase("bert.pooler.dense.weight"), t.erase("bert.pooler.dense.bias");
  });
  EXPECT_EQ(io::load_bert(folder.path(), device::cpu, f32)->origin().initialised.size(), 4u);
  // A folder with half of a layer is damaged, not a starting point.
  folder.change_tensors([](FolderCopy::Tensors& t) { t["classifier.bias"] = zeros({3}); });
  expect_error([&] { (void)io::load_bert(folder.path(), device::cpu, f32); },
               {"model.safetensors", "no tensor \"classifier.weight\""});
}

TEST(HuggingFace, EveryTensorIsUsedOrNamed) {
  const auto with = [](const char* model, const char* name, const Shape& shape) {
    FolderCopy folder(model);
    folder.change_tensors([&](FolderCopy::Tensors& t) { t[name] = zeros(shape); });
    return folder_loss(folder.path(), f32);
  };
  EXPECT_EQ(with("gpt2", "transformer.h.1.attn.bias", {1, 1, 16, 16}),
            folder_loss(golden_models / "gpt2", f32));
  EXPECT_EQ(with("llama", "model.layers.1.self_attn.rotary_emb.inv_freq", {2}),
            folder_loss(golden_models / "llama", f32));
  EXPECT_EQ(with("bert", "bert.embeddings.position_ids", {1, 16}),
            folder_loss(golden_models / "bert", f32));
  for (const auto& [model, name] : {std::pair{"gpt2", "transformer.h.2.attn.bias"},
                                    {"gpt2", "transformer.h.2.attn.c_attn.bias"},
                                    {"gpt2", "score.weight"},
                                    {"gpt2", "h.0.ln_1.weight"},
                                    {"llama", "model.layers.2.self_attn.rotary_emb.inv_freq"},
                                    {"llama", "model.layers.0.self_attn.q_proj.bias"},
                                    {"bert", "qa_outputs.weight"},
                                    {"bert", "cls.predictions.extra"}})
    expect_error([&, m = model, n = name] { (void)with(m, n, {4}); },
                 {"model.safetensors", name, "no part"});
}

TEST(HuggingFace, ShardedFolders) {
  FolderCopy folder("gpt2");
  FolderCopy::Tensors all = folder.tensors(), first, second;
  for (const auto& [name, tensor] : all) (first.size() < 10 ? first : second)[name] = tensor;
  const fs::path single = folder.path() / "model.safetensors",
                 index = folder.path() / "model.safetensors.index.json";
  folder.write("one.safetensors", first);
  folder.write("two.safetensors", second);
  Json map;
  for (const auto& [name, tensor] : first) map[name] = "one.safetensors";
  for (const auto& [name, tensor] : second) map[name] = "two.safetensors";
  const auto write = [&](const Json& json) { std::ofstream(index) << json; };
  const double loss = folder_loss(golden_models / "gpt2", f32);
  write({{"weight_map", {{"nothing", "here"}}}});
  EXPECT_EQ(folder_loss(folder.path(), f32), loss);  // a single file is taken before the index
  fs::remove(single);
  write({{"metadata", {{"total_size", 1}}}, {"weight_map", map}});
  EXPECT_EQ(folder_loss(folder.path(), f32), loss);

  const auto expect_refused = [&](const std::vector<std::string>& parts) {
    expect_error([&] { (void)folder_loss(folder.path(), f32); }, parts);
  };
  const std::string name = first.begin()->first;
  const auto expect_file_refused = [&](const Json& file, const char* part) {
    Json changed = map;
    changed[name] = file;
    write({{"weight_map", changed}});
    expect_refused({"model.safetensors", name, part});
  };
  fs::copy(folder.path() / "one.safetensors", folder.path().parent_path() / "one.safetensors");
  for (const std::string& outside :
       {std::string("../one.safetensors"), (folder.path() / "one.safetensors").string(),
        std::string(".."), std::string("sub/one.safetensors"), std::string()})
    expect_file_refused(outside, "in this folder");
  expect_file_refused(3, "in this folder");
  expect_file_refused("two.safetensors", "another file");
  Json fewer = map;
  fewer.erase(name);
  write({{"weight_map", fewer}});
  expect_refused({"index.json", name, "does not list"});
  fewer[name] = "three.safetensors";
  folder.write("three.safetensors", {{name, first.begin()->second}});
  write({{"weight_map", fewer}});
  expect_refused({"index.json", name, "another file"});
  Json more = map;
  more["transformer.extra"] = "one.safetensors";
  write({{"weight_map", more}});
  expect_refused({"index.json", "transformer.extra", "not there"});
  more["transformer.extra"] = "four.safetensors";
  write({{"weight_map", more}});
  expect_refused({"four.safetensors", "cannot open"});
  folder.write("four.safetensors", {{"transformer.extra", zeros({2})}});
  expect_refused({"four.safetensors", "transformer.extra", "no part"});
  write({{"weight_map", map}, {"another", 1}});
  expect_refused({"index.json", "another"});
  write({{"weight_map", map}, {"metadata", 3}});
  expect_refused({"index.json", "metadata"});
  for (const Json& wrong : {Json(), Json(3), Json::array(), Json::object()}) {
    write({{"weight_map", wrong}});
    expect_refused({"index.json", "weight_map"});
  }
  std::ofstream(index) << "{\"weight_map\": {\"a\": \"one.safetensors\", \"a\": \"two\"}}";
  expect_refused({"index.json", "\"a\"", "twice"});
  std::ofstream(index) << "not json";
  expect_refused({"index.json", "not JSON"});
  fs::remove(index);
  expect_refused({"model.safetensors", "cannot open"});
}

TEST(HuggingFace, Errors) {
  expect_error([] { (void)io::load_gpt2("no/such/folder", device::cpu, f32); },
               {"no/such/folder", "not a folder"});
  expect_error([] { (void)io::load_gpt2(golden_models / "llama", device::cpu, f32); },
               {"config.json", "\"gpt2\"", "\"llama\""});
  expect_error([] { (void)io::load_causal_lm(golden_models / "bert", device::cpu, f32); },
               {"bert", "next token"});
  const auto expect_refused = [](const char* model, const Json& fields,
                                 const std::vector<std::string>& parts) {
    FolderCopy folder(model);
    folder.set(fields);
    expect_error([&] { (void)folder_loss(folder.path(), f32); }, parts);
  };
  expect_refused("gpt2", {{"model_type", "mamba"}}, {"config.json", "mamba"});
  expect_refused("gpt2", {{"model_type", 3}}, {"config.json", "model_type", "string"});
  expect_refused("gpt2", {{"n_head", 3}}, {"16", "3 heads"});
  expect_refused("gpt2", {{"n_layer", 3}}, {"safetensors", "no tensor \"transformer.h.2."});
  expect_refused("gpt2", {{"n_layer", 1}}, {"safetensors", "belongs to no part"});
  expect_refused("gpt2", {{"n_layer", 10000}}, {"safetensors", "no tensor"});
  expect_refused("gpt2", {{"vocab_size", 62}},
                 {"safetensors", "wte.weight", "(61, 16)", "(62, 16)"});
  expect_refused("gpt2", {{"n_inner", 16777216}}, {"safetensors", "c_fc.weight", "16777216"});
  expect_refused("llama", {{"num_key_value_heads", 3}}, {"4 heads", "3 groups"});
  expect_refused("llama", {{"head_dim", 8}}, {"safetensors", "proj.weight"});
  expect_refused("llama", {{"attention_bias", true}}, {"safetensors", "q_proj.bias"});
  FolderCopy folder("gpt2");
  fs::remove(folder.path() / "config.json");
  ASSERT_EQ(mkfifo((folder.path() / "config.json").c_str(), 0600), 0);
  expect_error([&] { (void)folder_loss(folder.path(), f32); }, {"config.json", "regular"});
}

}  // namespace
}  // namespace ebb::test
