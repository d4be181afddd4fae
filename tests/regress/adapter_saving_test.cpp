// Saves and loads of runs with an adapter: checkpoints without the base, exports in PEFT's format, merged models.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "host/base/log.hpp"
#include "host/save/adapter_files.hpp"
#include "host/save/weights.hpp"
#include "host/service/memory.hpp"
#include "tests/regress/started_run.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/recorder.hpp"

namespace chassis::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kFile = "adapter_model.safetensors";
const Sharding kTwo{"two", 2, "[[parallel]]\nplugin = \"fsdp2\"\n"},
    kFour{"four", 4, "[[parallel]]\nplugin = \"fsdp2\"\n"};

class AdapterSaving : public testing::Test {
 protected:
  AdapterSaving() : run_({"train.global_batch_size=4", "train.micro_batch_size=1", "tokenizer.plugin=bytes"}) {
    run_.train("model", {"model.config.vocab_size=264", "run.max_steps=2", "run.seed=9"});
    base_ = run_.directory("model") + "/final";
  }

  std::vector<std::string> adapted(std::vector<std::string> words) const {
    words.insert(words.begin(),
                 {"model={ path = \"" + base_ + "\" }", "adapter={ plugin = \"lora\", rank = 2, alpha = 8 }"});
    return words;
  }
  std::string train(const std::string& name, const std::vector<std::string>& words, const Sharding& sharding = {}) {
    return run_.train(name, adapted(words), sharding);
  }
  // Continues the run in a copy of its directory.
  Outcome resume(const std::string& name, std::vector<std::string> words, const Sharding& sharding = {}) {
    return run_.start(name, adapted(std::move(words)), sharding);
  }
  std::string final_file(const std::string& name) { return text_of_file(run_.directory(name) + "/final/" + kFile); }

  Outcome chassis(const std::string& verb, const std::vector<std::string>& words) {
    const std::string file = run_.folder() / "verb.toml";
    write_text(file, "schema_version = 1\nextends = [\"run.toml\"]\n");
    std::vector<std::string> all = {CHASSIS_PROGRAM, verb, file};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"tokenizer.plugin=bytes", "--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
    return run_process(all, run_.folder().path());
  }
  // "eval loss … perplexity … tokens …", or what went wrong.
  std::string loss(std::vector<std::string> words) {
    words.insert(words.end(), {"data.eval.0.path=" + (run_.folder() / "tokens.jsonl"), "data.eval.0.format=tokens"});
    const Outcome outcome = chassis("eval", words);
    const size_t at = outcome.output.find("eval loss ");
    return at == std::string::npos ? outcome.output : outcome.output.substr(at);
  }
  std::string loss_of(const std::string& name, std::vector<std::string> words = {}) {
    words.push_back("run.output_dir=" + run_.directory(name));
    return loss(adapted(words));
  }

  std::vector<float> logits(const std::vector<std::string>& words, const std::string& from) {
    Session session(load_config(run_.config_path(), words), {.plugin_path = {CHASSIS_TEST_PLUGIN_DIR}});
    session.allocate();
    load_weights(session, from);
    return logits_of(session);
  }
  static std::vector<float> logits_of(Session& session) {
    constexpr int64_t kLength = 24;
    std::vector<int32_t> ids(kLength), positions(kLength), documents(kLength, 0);
    std::iota(ids.begin(), ids.end(), 5);
    std::iota(positions.begin(), positions.end(), 0);
    const int64_t sizes[] = {1, kLength};
    const Fields fields = {{"input_ids", Tensor::borrow(ids.data(), sizes, Dtype::i32).clone()},
                           {"positions", Tensor::borrow(positions.data(), sizes, Dtype::i32).clone()},
                           {"document_ids", Tensor::borrow(documents.data(), sizes, Dtype::i32).clone()}};
    return floats_of(session.executor().logits(fields, {}, false));
  }

  json manifest(const std::string& directory) const { return json::parse(text_of_file(directory + "/manifest.json")); }
  Outcome merge(const std::string& what, const std::string& out, std::vector<std::string> words = {}) {
    words.insert(words.begin(), {"merge", what, "--out", run_.folder() / out});
    words.insert(words.end(), {"--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
    return run_.ckpt(words);
  }
  // A copy of a run's export without its manifest, so that its files may be changed.
  std::string copy_of_export(const std::string& name, const std::string& copy) {
    const std::string to = run_.folder() / copy;
    fs::remove_all(to);
    fs::copy(run_.directory(name) + "/final", to);
    fs::remove(to + "/manifest.json");
    return to;
  }
  static void replace_in(const std::string& path, const std::string& from, const std::string& to) {
    std::string text = text_of_file(path);
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    write_text(path, text);
  }
  // Changes an element of an f32 tensor in a safetensors file.
  static void set_value(const std::string& path, const std::string& tensor, float value) {
    std::string bytes = text_of_file(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    const json header = json::parse(bytes.substr(8, length));
    const auto at = 8 + length + header.at(tensor).at("data_offsets").at(0).get<uint64_t>();
    std::memcpy(bytes.data() + at, &value, sizeof value);
    write_text(path, bytes);
  }

  StartedRun run_;
  std::string base_;
};

constexpr const char* kA = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";
constexpr const char* kB = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight";

TEST_F(AdapterSaving, CheckpointsHoldTrainedParametersAndNameTheBase) {
  train("one", {"run.max_steps=2"});
  train("two", {"run.max_steps=2"}, kTwo);
  const json one = manifest(run_.checkpoint("one", 2)), two = manifest(run_.checkpoint("two", 2));
  EXPECT_TRUE(one["resumable"].get<bool>());
  EXPECT_EQ(one["about"]["base"]["path"], base_);
  EXPECT_EQ(one["about"]["base"], two["about"]["base"]) << "the hash does not depend on the ranks";
  for (const json& tensor : one["tensors"]) EXPECT_HAS(tensor["name"].get<std::string>(), ".lora_");
  EXPECT_TRUE(fs::exists(run_.directory("one") + "/final/adapter_config.json"));
  EXPECT_FALSE(fs::exists(run_.directory("one") + "/final/config.json"));
  EXPECT_TRUE(fs::exists(run_.directory("one") + "/final/" + kFile));
  const std::string log = train("again", {"run.max_steps=2", "run.strict=true"});
  EXPECT_EQ(log.find("differs from the model"), log.npos) << log;
  EXPECT_EQ(final_file("again"), final_file("one"));
}

TEST_F(AdapterSaving, ResumesBitForBitOnOtherRanks) {
  for (const std::string contents : {"trained", "full"}) {
    const std::string is = "checkpoint.contents=" + contents;
    train(contents, {"run.max_steps=2", is, "schedule.name=constant"}, kFour);
    train(contents, {"run.max_steps=4", is, "schedule.name=constant"}, kTwo);
    train(contents, {"run.max_steps=6", is, "schedule.name=constant"});
  }
  EXPECT_EQ(final_file("trained"), final_file("full"));
  train("straight", {"run.max_steps=4", "schedule.name=constant"}, kTwo);
  train("stopped", {"run.max_steps=2", "schedule.name=constant"}, kTwo);
  train("stopped", {"run.max_steps=4", "schedule.name=constant"}, kTwo);
  EXPECT_EQ(final_file("stopped"), final_file("straight"));
}

TEST_F(AdapterSaving, GoesOnWithOtherContents) {
  train("straight", {"run.max_steps=4", "schedule.name=constant"});
  train("changed", {"run.max_steps=2", "schedule.name=constant", "checkpoint.contents=full"});
  train("changed", {"run.max_steps=3", "schedule.name=constant"});
  train("changed", {"run.max_steps=4", "schedule.name=constant", "checkpoint.contents=full"});
  EXPECT_EQ(final_file("changed"), final_file("straight"));
}

TEST_F(AdapterSaving, RefusesABaseThatIsMissingOrChangedAndFindsOneThatMoved) {
  train("run", {"run.max_steps=2"});
  const std::string old = base_;
  base_ = run_.folder() / "moved";
  fs::copy(old, base_);
  const Outcome moved = resume("run", {"run.max_steps=3"});
  EXPECT_EQ(moved.exit_code, 0) << moved.output;

  fs::remove(base_ + "/manifest.json");
  set_value(base_ + "/model.safetensors", "model.layers.2.mlp.up_proj.weight", 0.5f);
  const Outcome changed = resume("run", {"run.max_steps=4"});
  EXPECT_NE(changed.exit_code, 0);
  EXPECT_HAS(changed.output, "model.path = " + base_ + " (hash ");
  EXPECT_HAS(changed.output, "is not the model on which");
  EXPECT_HAS(changed.output, run_.checkpoint("run", 3));
  const Outcome evaluated =
      chassis("eval", adapted({"run.output_dir=" + run_.directory("run"),
                               "data.eval.0.path=" + (run_.folder() / "tokens.jsonl"), "data.eval.0.format=tokens"}));
  EXPECT_HAS(evaluated.output, "is not the model on which");

  fs::remove(base_ + "/model.safetensors");
  const Outcome missing = resume("run", {"run.max_steps=4"});
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_HAS(missing.output, "needs the frozen weights of its model");
  EXPECT_HAS(missing.output, base_);
}

// As for model directories: what is not compared before it is used would be saved again with a new checksum.
TEST_F(AdapterSaving, DamageToAnAdapterOrItsBaseStopsEveryUseOfThem) {
  write_text(base_ + "/generation_config.json", "{\"temperature\": 0.5}");
  fs::remove(base_ + "/manifest.json");
  const std::string exported = run_.folder() / "exported";
  ASSERT_EQ(run_.ckpt({"export", base_, exported, "--plugin-path", CHASSIS_TEST_PLUGIN_DIR}).exit_code, 0);
  base_ = exported;
  train("run", {"run.max_steps=1"});
  const std::string adapter = run_.directory("run") + "/final";
  const auto expect_found = [](const std::string& path, const std::function<Outcome()>& use) {
    const std::string whole = text_of_file(path);
    std::string bytes = whole;
    ASSERT_FALSE(bytes.empty()) << path;
    bytes[bytes.size() / 2] ^= 1;
    write_text(path, bytes);
    const Outcome outcome = use();
    EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
    EXPECT_HAS(outcome.output, path + "' is damaged: its CRC32C is ");
    write_text(path, whole);
  };
  const auto continued = [&] {
    return run_.start("more", {"model={ path = \"" + base_ + "\" }",
                               "adapter={ plugin = \"lora\", path = \"" + adapter + "\" }", "run.max_steps=1"});
  };
  const auto merged = [&] { return merge(adapter, "merged"); };
  const auto exported_again = [&] {
    return run_.ckpt({"export", run_.directory("run"), run_.folder() / "again", "--base", base_, "--plugin-path",
                      CHASSIS_TEST_PLUGIN_DIR});
  };
  expect_found(adapter + "/adapter_config.json", continued);
  expect_found(adapter + "/adapter_config.json", merged);
  for (const char* file : {"/config.json", "/generation_config.json"}) {
    expect_found(base_ + file, continued);
    expect_found(base_ + file, merged);
    expect_found(base_ + file, exported_again);
  }
  for (const char* made : {"merged", "again"}) EXPECT_FALSE(fs::exists(run_.folder() / made)) << made;
  for (const std::function<Outcome()>& use : {std::function<Outcome()>(continued), {merged}, {exported_again}}) {
    const Outcome outcome = use();
    EXPECT_EQ(outcome.exit_code, 0) << "it is whole again: " << outcome.output;
  }
}

TEST_F(AdapterSaving, FromADirectoryOrNotAtAllTheSameWeightsAreEvaluated) {
  train("adapted", {"run.max_steps=4", "optimizer.lr=0.02"});
  const std::string with = loss_of("adapted"), base = loss({"model={ path = \"" + base_ + "\" }"});
  EXPECT_HAS(with, "eval loss ");
  EXPECT_NE(with, base);
  EXPECT_EQ(loss_of("other", {"--from", run_.directory("adapted")}), with);
  EXPECT_EQ(loss_of("other", {"--from", run_.checkpoint("adapted", 4)}), with);
  EXPECT_EQ(loss_of("other", {"--from", run_.directory("adapted") + "/final"}), with);
  EXPECT_EQ(loss({"model={ path = \"" + base_ + "\" }", "--from", run_.directory("adapted") + "/final"}), with)
      << "adapter_config.json names the plugin";
  EXPECT_EQ(loss_of("adapted", {"--no-adapter"}), base);
  EXPECT_HAS(loss({"model={ path = \"" + base_ + "\" }", "--from", run_.directory("adapted")}),
             "nothing is frozen here");
  EXPECT_EQ(loss_of("adapted", {"--no-adapter", "--from", run_.directory("adapted")}), base);
  const Outcome generated =
      chassis("generate",
              adapted({"run.output_dir=" + run_.directory("adapted"), "--prompt", "a b", "generate.max_new_tokens=4"}));
  EXPECT_EQ(generated.exit_code, 0) << generated.output;
}

TEST_F(AdapterSaving, AnExportIsTheBeginningOfAnotherRun) {
  train("run", {"run.max_steps=3", "optimizer.lr=0.02"});
  const auto continued = [&](const std::string& name, const std::string& from) {
    run_.train(name, {"model={ path = \"" + base_ + "\" }", "adapter={ plugin = \"lora\", path = \"" + from + "\" }",
                      "run.max_steps=2"});
    return final_file(name);
  };
  EXPECT_EQ(continued("a", run_.directory("run") + "/final"), continued("b", run_.checkpoint("run", 3)));
  EXPECT_NE(final_file("a"), final_file("run"));
  const std::string copy = copy_of_export("run", "renamed");
  replace_in(copy + "/adapter_config.json", base_, "elsewhere/another");
  const std::string log =
      run_.train("c", {"model={ path = \"" + base_ + "\" }", "adapter={ plugin = \"lora\", path = \"" + copy + "\" }",
                       "run.max_steps=2"});
  EXPECT_HAS(log, "base_model_name_or_path is elsewhere/another");
  EXPECT_EQ(final_file("c"), final_file("a"));
  const Outcome exported =
      run_.ckpt({"export", run_.directory("run"), run_.folder() / "x", "--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  EXPECT_EQ(text_of_file(run_.folder() / "x/adapter_model.safetensors"), final_file("run"));
}

TEST_F(AdapterSaving, ATiedModuleIsSavedUnderBothNamesAndLoadedOnce) {
  run_.train("tied", {"model.config.vocab_size=264", "model.config.tie_word_embeddings=true", "run.max_steps=1"});
  base_ = run_.directory("tied") + "/final";
  const std::string model = "model={ path = \"" + base_ + "\" }", both = "modules_to_save = [\"embed_tokens\"] }";
  run_.train("run", {model, "adapter={ plugin = \"lora\", rank = 2, " + both, "run.max_steps=2"}, kTwo);
  const std::string file = final_file("run");
  for (const char* name : {"base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight"})
    EXPECT_EQ(count_of(file, name), 1u) << name;
  const Outcome exported =
      run_.ckpt({"export", run_.directory("run"), run_.folder() / "x", "--plugin-path", CHASSIS_TEST_PLUGIN_DIR});
  EXPECT_EQ(exported.exit_code, 0) << exported.output;
  EXPECT_EQ(text_of_file(run_.folder() / "x/adapter_model.safetensors"), file);
  ASSERT_EQ(merge(run_.directory("run"), "m").exit_code, 0);
  const std::string adapted_loss =
      loss({model, "run.output_dir=" + run_.directory("none"), "--from", run_.directory("run") + "/final"});
  EXPECT_HAS(adapted_loss, "eval loss ");
  EXPECT_EQ(loss({"model={ path = \"" + (run_.folder() / "m") + "\" }", "run.output_dir=" + run_.directory("none")}),
            adapted_loss);
  const std::string copy = copy_of_export("run", "copy");
  set_value(copy + "/" + kFile, "base_model.model.lm_head.weight", 7.0f);
  const std::string differs = loss({model, "run.output_dir=" + run_.directory("none"), "--from", copy});
  EXPECT_HAS(differs, "lm_head.weight [264, 32] differs from model.embed_tokens.weight [264, 32]");
}

TEST_F(AdapterSaving, AMergedModelComputesTheSame) {
  const std::vector<std::string> strong = {"run.max_steps=4", "optimizer.lr=0.02"};
  train("run", strong);
  train("full", {"run.max_steps=4", "optimizer.lr=0.02", "checkpoint.contents=full"});
  train("weights", {"run.max_steps=4", "optimizer.lr=0.02", "checkpoint.contents=model_only"});
  train("merged", {"run.max_steps=4", "optimizer.lr=0.02", "export.merge=true"}, kTwo);
  const std::vector<float> with = logits(adapted({}), run_.checkpoint("run", 4));
  const auto largest_difference = [&](const std::string& model) {
    const std::vector<float> merged = logits({"model={ path = \"" + model + "\" }"}, model);
    float largest = 0;
    for (size_t i = 0; i < with.size(); ++i) largest = std::max(largest, std::abs(with[i] - merged[i]));
    return largest;
  };
  EXPECT_GT(largest_difference(base_), 1e-2f);
  for (const std::string& from : {run_.directory("run"), run_.directory("run") + "/final", run_.checkpoint("full", 4),
                                  run_.directory("weights")}) {
    const Outcome outcome = merge(from, "m");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_LE(largest_difference(run_.folder() / "m"), 1e-5f) << from;
  }
  EXPECT_LE(largest_difference(run_.directory("merged") + "/final"), 1e-4f) << "two ranks sum in another order";
  EXPECT_TRUE(fs::exists(run_.folder() / "m/config.json"));
  EXPECT_FALSE(fs::exists(run_.folder() / "m/adapter_config.json"));
  const Outcome half = merge(run_.directory("run"), "half", {"--dtype", "bf16"});
  EXPECT_EQ(half.exit_code, 0) << half.output;
  EXPECT_HAS(text_of_file(run_.folder() / "half/model.safetensors"), "\"BF16\"");
}

TEST_F(AdapterSaving, FrozenParametersOfAFullModelAreLeftOutToo) {
  const std::vector<std::string> words = {"model={ path = \"" + base_ + "\" }", "freeze.train_only=[\"norm\"]",
                                          "checkpoint.contents=trained", "schedule.name=constant"};
  const auto train_to = [&](const std::string& name, int step) {
    std::vector<std::string> all = words;
    all.push_back("run.max_steps=" + std::to_string(step));
    run_.train(name, all);
  };
  train_to("part", 2);
  train_to("part", 4);
  train_to("straight", 4);
  const std::string file = text_of_file(run_.directory("part") + "/final/model.safetensors");
  EXPECT_EQ(file, text_of_file(run_.directory("straight") + "/final/model.safetensors"));
  const json part = manifest(run_.checkpoint("part", 4));
  for (const json& tensor : part["tensors"]) EXPECT_HAS(tensor["name"].get<std::string>(), "norm");
  const Outcome outcome = merge(run_.directory("part"), "m");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(text_of_file(run_.folder() / "m/model.safetensors"), file);
}

TEST_F(AdapterSaving, MergingRefusesAnotherBaseNoBaseAndOverflow) {
  train("run", {"run.max_steps=2"});
  const std::string other = run_.folder() / "other";
  fs::copy(base_, other);
  fs::remove(other + "/manifest.json");
  set_value(other + "/model.safetensors", "model.layers.2.mlp.up_proj.weight", 0.5f);
  const Outcome changed = merge(run_.directory("run"), "m", {"--base", other});
  EXPECT_HAS(changed.output, "is not the model on which");
  EXPECT_FALSE(fs::exists(run_.folder() / "m"));

  const std::string copy = copy_of_export("run", "copy");
  const Outcome theirs = merge(copy, "theirs");
  EXPECT_EQ(theirs.exit_code, 0) << theirs.output;
  set_value(copy + "/" + kFile, kB, 1e8f);
  const Outcome overflow = merge(copy, "m", {"--dtype", "fp16"});
  EXPECT_NE(overflow.exit_code, 0);
  EXPECT_HAS(overflow.output, "the merged 'model.layers.1.self_attn.q_proj.weight' has the value");
  EXPECT_HAS(overflow.output, "overflows");
  EXPECT_FALSE(fs::exists(run_.folder() / "m"));
  replace_in(copy + "/adapter_config.json", base_, "elsewhere/another");
  const Outcome nowhere = merge(copy, "m");
  EXPECT_HAS(nowhere.output, "elsewhere/another");
  EXPECT_HAS(nowhere.output, "--base DIR");
  const Outcome model = merge(base_, "m");
  EXPECT_NE(model.exit_code, 0);
  EXPECT_HAS(model.output, "nothing to merge");
}

// A checkpoint of trained parameters has no base, and taking it for one would compute on weights that were never read.
TEST_F(AdapterSaving, WhatWasTrainedIsNoBase) {
  train("run", {"run.max_steps=2"});
  for (const std::string& path : {run_.checkpoint("run", 2), run_.directory("run") + "/final"}) {
    const std::string model = "model={ path = \"" + path + "\" }";
    const Outcome outcome =
        run_.start("bad", {model, "adapter={ plugin = \"lora\", rank = 2, alpha = 8 }", "run.max_steps=1"});
    EXPECT_NE(outcome.exit_code, 0) << path;
    if (path.ends_with("/final")) continue;  // has no config.json
    EXPECT_HAS(outcome.output, "has only what was trained in addition to the frozen weights in " + base_);
    EXPECT_HAS(outcome.output, "hint: set model.path to that model, and adapter.path to " + path);
  }
  train("weights", {"run.max_steps=2", "checkpoint.contents=model_only"});
  const Outcome weights = resume("weights", {"run.max_steps=3"});
  EXPECT_HAS(weights.output, "holds only weights and cannot be resumed");
}

TEST_F(AdapterSaving, AnotherBaseIsTold) {
  train("run", {"run.max_steps=2"});
  const std::string other = run_.folder() / "other", adapter = run_.directory("run") + "/final";
  fs::copy(base_, other);
  fs::remove(other + "/manifest.json");
  set_value(other + "/model.safetensors", "model.layers.2.mlp.up_proj.weight", 0.5f);
  EXPECT_EQ(manifest(adapter)["about"]["base"], manifest(run_.checkpoint("run", 2))["about"]["base"]);
  const auto eval = [&](const std::string& model, const std::string& from) {
    return chassis("eval", {"model={ path = \"" + model + "\" }", "--from", from, "run.output_dir=none",
                            "data.eval.0.path=" + (run_.folder() / "tokens.jsonl"), "data.eval.0.format=tokens"})
        .output;
  };
  const std::string told = "run/final was trained on " + base_ + " (hash ";
  EXPECT_HAS(eval(other, adapter), told);
  EXPECT_EQ(eval(base_, adapter).find(told), std::string::npos);
  const Outcome merged = merge(adapter, "m", {"--base", other});
  EXPECT_EQ(merged.exit_code, 0) << merged.output;
  EXPECT_HAS(merged.output, "is not the model on which '" + adapter + "' was trained, " + base_);
  EXPECT_EQ(merge(adapter, "n").output.find("is not the model"), std::string::npos);
  // Without a manifest, names are all there is to compare.
  const Outcome by_name = merge(copy_of_export("run", "copy"), "o", {"--base", other});
  EXPECT_HAS(by_name.output, "base_model_name_or_path is " + base_ + ", its base model is " + other);
}

TEST_F(AdapterSaving, ARunWithoutCheckpointsIsTold) {
  const Outcome outcome =
      chassis("eval", adapted({"run.output_dir=mistyped", "data.eval.0.path=" + (run_.folder() / "tokens.jsonl"),
                               "data.eval.0.format=tokens"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_HAS(outcome.output, "mistyped/checkpoints has no checkpoint: the weights are those of model.path = " + base_);
}

TEST_F(AdapterSaving, ATiedHeadIsNotMergedAndThatIsSaidAtTheStart) {
  run_.train("tied", {"model.config.vocab_size=264", "model.config.tie_word_embeddings=true", "run.max_steps=1"});
  const std::vector<std::string> changes = {
      "model={ path = \"" + run_.directory("tied") + "/final\" }", "export.merge=true",
      "adapter={ plugin = \"lora\", rank = 2, targets = [\"lm_head\"] }", "run.max_steps=2"};
  const Outcome outcome = run_.start("bad", changes);
  for (const Outcome& refused : {outcome, chassis("check", changes)}) {
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_HAS(refused.output, "the branch of 'lm_head' cannot be merged: its weight is tied to another module");
  }
  EXPECT_EQ(outcome.output.find("step 1/2"), std::string::npos) << outcome.output;
}

TEST_F(AdapterSaving, ATiedHeadThatTrainsIsCountedAsOneThatCannotBeMerged) {
  run_.train("tied", {"model.config.vocab_size=264", "model.config.tie_word_embeddings=true", "run.max_steps=1"});
  const std::vector<std::string> changes = {"model={ path = \"" + run_.directory("tied") + "/final\" }",
                                            "adapter={ plugin = \"lora\", rank = 2, targets = [\"lm_head\"] }",
                                            "run.max_steps=2"};
  const Outcome trained = run_.start("head", changes);
  for (const Outcome& outcome : {trained, chassis("check", changes)}) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_HAS(outcome.output, "the branch of 'lm_head' cannot be merged: its weight is tied to another module");
    EXPECT_HAS(outcome.output, "leave 'lm_head' out of the adapter's targets");
  }
  EXPECT_HAS(trained.output, "warning: adapters that cannot be merged (once)");
}

TEST_F(AdapterSaving, BadFilesAreNamed) {
  train("run", {"run.max_steps=1"});
  const auto refusal = [&](const std::string& adapter) {
    const Outcome outcome =
        run_.start("bad", {"model={ path = \"" + base_ + "\" }",
                           "adapter={ plugin = \"lora\", path = \"" + adapter + "\" }", "run.max_steps=1"});
    EXPECT_NE(outcome.exit_code, 0);
    return outcome.output;
  };
  std::string copy = copy_of_export("run", "bad-adapter");
  replace_in(copy + "/" + kFile, kA, std::string(kA).replace(std::string(kA).find("lora_A"), 6, "lora_X"));
  const std::string renamed = refusal(copy);
  EXPECT_HAS(renamed, "1 missing:\n    model.layers.1.self_attn.q_proj.lora_A.weight [2, 32]");
  EXPECT_HAS(renamed, "1 unexpected:\n    model.layers.1.self_attn.q_proj.lora_X.weight [2, 32]");
  copy = copy_of_export("run", "bad-adapter");
  replace_in(copy + "/" + kFile, "[2,32]", "[32,2]");
  EXPECT_HAS(refusal(copy), "is [32, 2] on disk, [2, 32] in the model");
  copy = copy_of_export("run", "bad-adapter");
  set_value(copy + "/" + kFile, kA, NAN);
  EXPECT_HAS(refusal(copy), "'model.layers.1.self_attn.q_proj.lora_A.weight' at [0, 0]");
  const Outcome merged = merge(copy, "m");
  EXPECT_HAS(merged.output, "'model.layers.1.self_attn.q_proj.lora_A.weight'");
  copy = copy_of_export("run", "bad-adapter");
  fs::remove(copy + "/" + kFile);
  EXPECT_HAS(refusal(copy), kFile);
  // An adapter is no model.
  const Outcome as_model =
      run_.start("bad", {"model={ path = \"" + copy_of_export("run", "x") + "\" }", "run.max_steps=1"});
  EXPECT_NE(as_model.exit_code, 0);
}

TEST_F(AdapterSaving, RefusesSettingsThatCannotBeSaved) {
  const auto refusal = [&](const std::vector<std::string>& words) {
    const Outcome outcome = run_.start("bad", words);
    EXPECT_NE(outcome.exit_code, 0);
    return outcome.output;
  };
  EXPECT_HAS(refusal(adapted({"export.plugin=safetensors"})), "export.merge = true writes the merged model");
  EXPECT_HAS(refusal(adapted({"export.plugin=peft", "export.merge=true"})), "remove one");
  EXPECT_HAS(refusal({"export.merge=true"}), "there is no [adapter]");
  EXPECT_HAS(refusal({"adapter={ plugin = \"lora\", rank = 2 }", "checkpoint.contents=trained",
                      "model.config.vocab_size=264"}),
             "those of this run are random");
}

// `chassis serve --lora` answers with such sessions.
TEST_F(AdapterSaving, SessionsOfTwoAdaptersShareTheTensorsOfTheBase) {
  train("one", {"run.max_steps=4"});
  run_.train("two",
             {"run.max_steps=4", "model={ path = \"" + base_ + "\" }",
              "adapter={ plugin = \"lora\", rank = 3, targets = [\"q_proj\"], modules_to_save = [\"lm_head\"] }"});
  const auto open = [&](const std::vector<std::string>& words, const SessionOptions& options) {
    std::vector<std::string> all = {"model={ path = \"" + base_ + "\" }", "tokenizer.plugin=bytes"};
    all.insert(all.end(), words.begin(), words.end());
    SessionOptions with = options;
    with.plugin_path = {CHASSIS_TEST_PLUGIN_DIR};
    return std::make_unique<Session>(load_config(run_.config_path(), all, ConfigUse::kGeneration), with);
  };
  const auto live_bytes = [] { return memory_usage().of(MemoryCategory::kParameters).live_bytes; };
  const auto base = open({}, {.freezes_all = true});
  base->allocate();
  const LoadedWeights loaded = load_weights(*base, base_);
  EXPECT_FALSE(loaded.hash.empty());
  const uint64_t base_bytes = base->parameters().stored_bytes();
  EXPECT_EQ(base_bytes, 4 * static_cast<uint64_t>(base->parameters().num_elements(false)));

  std::vector<std::unique_ptr<Session>> adapted;
  std::vector<std::string> directories = {run_.directory("one") + "/final", run_.checkpoint("two", 4)};
  for (const std::string& directory : directories) {
    const std::string adapter = "adapter={ plugin = \"lora\", path = \"" + directory + "\" }";
    Session& session = *adapted.emplace_back(open({adapter}, {.lender = base.get()}));
    EXPECT_EQ(session.tokenizer(), base->tokenizer());
    check_adapter(session, directory);
    const uint64_t before = live_bytes();
    session.allocate();
    load_adapter_on(session, directory, loaded);
    uint64_t own_bytes = 0;
    for (const auto& p : session.parameters().all()) {
      if (is_kept(*p)) own_bytes += 4 * static_cast<uint64_t>(numel(p->descriptor.global_shape));
      const Parameter* const lent = base->parameters().find(p->name);
      EXPECT_EQ(lent != nullptr && p->shard.shares_storage_with(lent->shard), !is_kept(*p)) << p->name;
    }
    EXPECT_EQ(session.parameters().stored_bytes(&base->parameters()), own_bytes);
    EXPECT_GE(live_bytes() - before, own_bytes);
    EXPECT_LT(live_bytes() - before, own_bytes + base_bytes / 4);
  }
  EXPECT_EQ(logits_of(*base), logits({"model={ path = \"" + base_ + "\" }"}, base_));
  for (size_t i = 0; i < 2; ++i) {
    const std::vector<float> alone = logits(
        {"model={ path = \"" + base_ + "\" }", "adapter={ plugin = \"lora\", path = \"" + directories[i] + "\" }"},
        directories[i]);
    EXPECT_EQ(logits_of(*adapted[i]), alone) << directories[i];
    EXPECT_NE(alone, logits_of(*base));
  }
  EXPECT_NE(logits_of(*adapted[0]), logits_of(*adapted[1]));

  EXPECT_TRUE(counted_warnings().empty()) << counted_warnings().front().first;
  load_adapter_on(*adapted[0], directories[0], {.directory = base_, .hash = std::string(64, '0')});
  ASSERT_EQ(num_counted_warnings(), 1u);
  EXPECT_EQ(counted_warnings().front().first, "the adapter was made for another model");
  log::reset_counted_warnings();
}

TEST_F(AdapterSaving, AModelWithoutAllOfItsWeightsIsNotShared) {
  run_.train("part", {"run.max_steps=2", "model={ path = \"" + base_ + "\" }", "freeze.train_only=[\"layers.0\"]",
                      "checkpoint.contents=trained"});
  Session session(load_config(run_.config_path(), {"model={ path = \"" + base_ + "\" }", "tokenizer.plugin=bytes"},
                              ConfigUse::kGeneration),
                  {.plugin_path = {CHASSIS_TEST_PLUGIN_DIR}, .freezes_all = true});
  session.allocate();
  EXPECT_HAS(refusal([&] { load_weights(session, run_.checkpoint("part", 2)); }),
             "adapters share a model with all of its weights");
}

// The peak memory of a merge does not depend on the size of the model.
TEST_F(AdapterSaving, MergingNeedsTwoBuckets) {
  const auto peak_mib = [&](const std::string& name, const std::vector<std::string>& sizes) {
    std::vector<std::string> words = {"run.max_steps=1", "train.global_batch_size=1", "checkpoint.contents=model_only"};
    words.insert(words.end(), sizes.begin(), sizes.end());
    run_.train(name, words);
    base_ = run_.directory(name) + "/final";
    train(name + "-adapted", {"run.max_steps=1", "train.global_batch_size=1"});
    const Outcome outcome = merge(run_.directory(name + "-adapted"), name + "-merged");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    const size_t at = outcome.output.find("process peak ");
    EXPECT_NE(at, std::string::npos) << outcome.output;
    const std::string text = outcome.output.substr(at + 13);
    EXPECT_HAS(text.substr(0, text.find(',')), "MiB");
    return std::stod(text);
  };
  const double small = peak_mib("small", {"model.config.vocab_size=264"});
  const double large = peak_mib("large", {"model.config.vocab_size=40000", "model.config.hidden_size=256"});
  std::printf("peak of the process: %.0f MiB for a small model, %.0f MiB for one of %.0f MiB\n", small, large,
              static_cast<double>(fs::file_size(run_.folder() / "large-merged/model.safetensors")) / (1 << 20));
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LE(large, small + 24) << "buckets are touched, and a chunk of 4 MiB";
#endif
}

}  // namespace
}  // namespace chassis::test
