// Files of a model in 4 bits: what eval and generate compute from them, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <regex>

#include "tests/regress/quant_run.hpp"
#include "tests/regress/stored_model.hpp"
#include "tests/support/expect_has.hpp"

namespace chassis::test {
namespace {

const std::string kQuant = "[quant]\nplugin = \"bnb4\"\n";
const std::string kWeight = "model.layers.1.mlp.down_proj.weight";

// A model in 4 bits, quantized by a run.
StoredModel stored_by(QuantRun& run, bool is_nested) {
  run(quant(is_nested ? "double_quant = true\n" : ""), 1, {"checkpoint.contents=full"});
  return {run.folder() / "run/checkpoints/step-000004", run.folder() / "base", is_nested};
}

class QuantFiles : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    run_ = std::make_unique<QuantRun>();
    for (const bool is_nested : {false, true}) models_.push_back(stored_by(*run_, is_nested));
  }
  static void TearDownTestSuite() {
    run_.reset();
    models_.clear();
  }

  static Outcome evaluate(const StoredModel& model, const std::string& tables = kQuant) {
    model.write(run_->folder() / "model");
    return run_->use("eval", "model", tables);
  }
  using Change = std::function<void(StoredModel&)>;
  // Expects that a changed model is refused with this exit code and these texts.
  static void refused(bool is_nested, const Change& change, int exit_code, const std::vector<std::string>& texts) {
    StoredModel model = models_[is_nested];
    change(model);
    const Outcome outcome = evaluate(model);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
    for (const std::string& text : texts) EXPECT_HAS(outcome.output, text);
    EXPECT_EQ(outcome.output.find("internal error"), std::string::npos) << outcome.output;
  }
  static Change set_state(const std::string& key, const nlohmann::ordered_json& value) {
    return [=](StoredModel& model) {
      nlohmann::ordered_json state = model.state(kWeight);
      if (value.is_null())
        state.erase(key);
      else
        state[key] = value;
      model.set_state(kWeight, state.dump());
    };
  }
  static Change set_value(const std::string& suffix, float value) {
    return [=](StoredModel& model) { model.tensors.at(kWeight + suffix).set(0, value); };
  }
  static Change shorten(const std::string& suffix, size_t element_bytes) {
    return [=](StoredModel& model) {
      StoredTensor& tensor = model.tensors.at(kWeight + suffix);
      --tensor.shape[0];
      tensor.bytes.resize(tensor.bytes.size() - element_bytes);
    };
  }
  static Change remove(const std::string& suffix) {
    return [=](StoredModel& model) { ASSERT_EQ(model.tensors.erase(kWeight + suffix), 1u); };
  }

  static std::unique_ptr<QuantRun> run_;
  static std::vector<StoredModel> models_;
};
std::unique_ptr<QuantRun> QuantFiles::run_;
std::vector<StoredModel> QuantFiles::models_;

double loss_of(const Outcome& outcome) {
  std::smatch found;
  if (!std::regex_search(outcome.output, found, std::regex("loss ([0-9.]+)"))) return std::nan("");
  return std::stod(found[1]);
}

TEST_F(QuantFiles, HaveTheLossOfTheirDequantizedWeights) {
  std::vector<double> losses;
  for (const StoredModel& model : models_) {
    const Outcome ours = evaluate(model), plain = evaluate(model.dequantized(), "");
    ASSERT_EQ(ours.exit_code, 0) << ours.output;
    ASSERT_EQ(plain.exit_code, 0) << plain.output;
    EXPECT_LE(std::abs(loss_of(ours) - loss_of(plain)), 1e-6) << ours.output << plain.output;
    losses.push_back(loss_of(ours));
  }
  EXPECT_GT(std::abs(losses[0] - losses[1]), 1e-5) << "double quantization changes the loss";
  // Quantized on load, the base has the loss of its files.
  const Outcome on_load = run_->use("eval", "base", kQuant);
  EXPECT_LE(std::abs(loss_of(on_load) - losses[0]), 1e-6) << on_load.output;
  EXPECT_GT(std::abs(loss_of(run_->use("eval", "base", "")) - losses[0]), 1e-5) << "4 bits change the loss";
}

TEST(QuantGeneration, GivesTheTextOfTheDequantizedWeights) {
  QuantRun run(259);
  for (const bool is_nested : {false, true}) {
    const StoredModel model = stored_by(run, is_nested);
    model.write(run.folder() / "stored");
    model.dequantized().write(run.folder() / "plain");
    const std::string tables = "[tokenizer]\nplugin = \"bytes\"\n[generate]\nmax_new_tokens = 40\ntemperature = 0.0\n";
    for (const bool is_cached : {true, false}) {
      std::vector<std::string> words = {"--prompt", "Once upon a time"};
      if (!is_cached) words.push_back("--no-cache");
      const Outcome ours = run.use("generate", "stored", kQuant + tables, words),
                    plain = run.use("generate", "plain", tables, words);
      ASSERT_EQ(ours.exit_code, 0) << ours.output;
      const auto text = [](const Outcome& o) { return o.output.substr(o.output.find("Once upon")); };
      EXPECT_GT(text(ours).size(), 50u) << ours.output;
      EXPECT_EQ(text(ours), text(plain));
    }
  }
}

TEST_F(QuantFiles, AreRefusedWithoutACompanion) {
  const std::vector<std::string> misfit = {"'model' does not fit the model", "1 missing"};
  const auto missing = [&](const std::string& suffix) {
    return std::vector<std::string>{misfit[0], misfit[1], kWeight + suffix + " ["};
  };
  refused(false, remove(".absmax"), 7, missing(".absmax"));
  refused(false, remove(".quant_map"), 7, missing(".quant_map"));
  refused(true, remove(".nested_absmax"), 7, missing(".nested_absmax"));
  refused(true, remove(".nested_quant_map"), 7, missing(".nested_quant_map"));
  for (const bool is_nested : {false, true})
    refused(is_nested, remove(StoredModel::kState), 7,
            {kWeight + " is u8 and has no " + kWeight + StoredModel::kState + ", which says how it is quantized"});
  refused(false, remove(""), 7, {kWeight});
}

TEST_F(QuantFiles, AreRefusedIfATensorIsTooShort) {
  // 36 × 57 elements.
  refused(false, shorten("", 1), 7, {kWeight + " is [1025, 1] on disk, [1026, 1] in the model"});
  refused(false, shorten(".absmax", 4), 7, {kWeight + ".absmax is [32] on disk, [33] in the model"});
  refused(true, shorten(".absmax", 1), 7, {kWeight + ".absmax is [32] on disk, [33] in the model"});
  refused(true, shorten(".nested_absmax", 4), 7, {kWeight + ".nested_absmax is [0] on disk, [1] in the model"});
  refused(false, shorten(".quant_map", 4), 7, {kWeight + ".quant_map is [15] on disk, [16] in the model"});
  refused(true, shorten(".nested_quant_map", 4), 7, {kWeight + ".nested_quant_map is [255] on disk, [256]"});
}

TEST_F(QuantFiles, AreRefusedIfAScaleCannotBe) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const std::string where = "parameter '" + kWeight + "': plugin 'bnb4'";
  for (const auto& [value, shown] : {std::pair(kNan, "nan"), {kInfinity, "inf"}, {-kInfinity, "-inf"}, {-1.0f, "-1"}})
    for (const bool is_nested : {false, true}) {
      const std::string suffix = is_nested ? ".nested_absmax" : ".absmax";
      refused(is_nested, set_value(suffix, value), 7,
              {where, suffix + "[0] is " + shown + ", expected a finite number that is not negative"});
    }
  refused(false, set_value(".quant_map", 0.5f), 7, {where, ".quant_map[0] is 0.5, expected -1 of nf4"});
  refused(true, set_value(".nested_quant_map", kNan), 7,
          {where, ".nested_quant_map[0] is nan, expected -0.992968738 as bitsandbytes has it"});
  refused(true, set_value(".nested_quant_map", -0.5f), 7,
          {where, ".nested_quant_map[0] is -0.5, expected -0.992968738"});
  refused(true, set_state("nested_offset", -0.5), 7, {where, ".nested_offset[0] is -0.5, expected a finite number"});
}

// Codes in a tensor of another type are no values.
TEST_F(QuantFiles, AreRefusedByExportIfCodesAreFloats) {
  StoredModel model = models_[false];
  StoredTensor& codes = model.tensors.at(kWeight);
  std::string floats;
  for (const char code : codes.bytes) {
    const auto value = static_cast<float>(static_cast<unsigned char>(code));
    floats.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  codes.dtype = "F32", codes.bytes = floats;
  model.write(run_->folder() / "model");
  const Outcome exported = run_process({CHASSIS_PROGRAM, "ckpt", "export", "model", "exported"}, run_->folder().path());
  EXPECT_EQ(exported.exit_code, 7) << exported.output;
  EXPECT_HAS(exported.output, kWeight + " is f32[1026, 1] with .absmax beside it: codes in a tensor of floats");
  EXPECT_EQ(exported.output.find("invariant"), std::string::npos) << exported.output;
}

TEST_F(QuantFiles, AreRefusedWithAStateOfAnotherWeight) {
  const auto says = [](const std::string& what) {
    return std::vector<std::string>{"parameter '" + kWeight + "': plugin 'bnb4'", "quant_state: " + what};
  };
  refused(false, set_state("shape", {57, 36}), 7, says("shape is [57, 36], expected [36, 57]"));
  refused(false, set_state("shape", {int64_t{1} << 40, int64_t{1} << 40}), 7, says("shape is [1099511627776,"));
  refused(false, set_state("blocksize", 128), 7, says("blocksize is 128, expected 64, as quant.block_size says"));
  refused(false, set_state("blocksize", 63), 7, says("blocksize is 63, expected a power of 2 from 32 to 4096"));
  refused(false, set_state("quant_type", "fp4"), 7, says("quant_type is fp4, expected nf4"));
  refused(false, set_state("quant_type", 4), 7, says("quant_type is 4, expected a text"));
  refused(false, set_state("dtype", nullptr), 7, says("it has no key dtype"));
  refused(false, set_state("extra", 1), 7, says("unknown key \"extra\""));
  refused(false, set_state("nested_offset", 0.5), 7, says("it has no key nested_blocksize"));
  refused(true, set_state("nested_offset", nullptr), 7, says("it has no key nested_offset"));
  refused(true, set_state("nested_offset", 1e300), 7,
          says("nested_offset is 1e+300, which is not a finite fp32 number"));
  refused(true, set_state("nested_blocksize", 128), 7, says("nested_blocksize is 128, expected 256"));
  for (const std::string& text : {std::string(5000, '['), std::string("\0\x1b[31m", 6), std::string("[1, 2]"),
                                  std::string("{\"quant_type\": \"nf4\", \"quant_type\": \"nf4\"}")})
    refused(
        false, [&](StoredModel& model) { model.set_state(kWeight, text); }, 7, says(""));
  for (const size_t num_bytes : {size_t{0}, size_t{70000}})
    refused(false, [&](StoredModel& model) { model.set_state(kWeight, std::string(num_bytes, ' ')); }, 7,
            {kWeight + StoredModel::kState + " is u8[" + std::to_string(num_bytes) +
             "], expected a text of u8 with 1 to 65536 bytes"});
}

TEST_F(QuantFiles, KeepValuesOnlyWhereTheirListSaysSo) {
  const Change as_values = [](StoredModel& model) {
    const StoredTensor values = model.dequantized().tensors.at(kWeight);
    std::erase_if(model.tensors, [](const auto& entry) { return entry.first.starts_with(kWeight); });
    model.tensors[kWeight] = values;
  };
  refused(false, as_values, 7, {kWeight + " is f32, while ", " is quantized; what a quantized model stores as values"});
  StoredModel model = models_[0];
  as_values(model);
  model.config["quantization_config"]["llm_int8_skip_modules"] = {"layers.1.mlp.down_proj", "lm_head"};
  const Outcome partly = evaluate(model), wholly = evaluate(models_[0]);
  EXPECT_EQ(partly.exit_code, 0) << partly.output;
  EXPECT_LE(std::abs(loss_of(partly) - loss_of(wholly)), 1e-6) << partly.output << wholly.output;
}

TEST_F(QuantFiles, NameTheKeyThatDiffersFromTheirs) {
  models_[0].write(run_->folder() / "model");
  const auto refusal = [&](const std::string& tables) { return run_->use("eval", "model", tables).output; };
  EXPECT_HAS(refusal(kQuant + "block_size = 128\n"),
             "absmax has 21 values for 1296 elements, one for each 64, and [quant] stores one for each 128");
  EXPECT_HAS(refusal(kQuant + "block_size = 128\n"), "hint: set the size of blocks in [quant] to 64");
  EXPECT_HAS(refusal(kQuant + "type = \"fp4\"\n"), "quant.type: fp4, but the model's config.json says nf4; remove");
  EXPECT_HAS(refusal(kQuant + "double_quant = true\n"), "quant.double_quant: true, but the model's config.json says");
  EXPECT_HAS(refusal(kQuant + "skip = [\"q_proj\"]\n"),
             "quant.skip: cannot be set for a model that is already quantized");
  EXPECT_HAS(refusal(""),
             "model/config.json: the weights are quantized (quantization_config: bitsandbytes, "
             "load_in_4bit), and there is no [quant]\nhint: add [quant] with plugin = \"bnb4\"");
  std::string config = text_of_file(run_->folder() / "model/config.json");
  const std::string four = "load_in_4bit";
  ASSERT_NE(config.find(four), std::string::npos) << config;
  config.replace(config.find(four), four.size(), "load_in_8bit");
  write_text(run_->folder() / "model/config.json", config);
  EXPECT_HAS(refusal(""), "hint: no installed plugin of kind quant reads them; bnb4: ");
}

TEST_F(QuantFiles, OfARunNeedQuant) {
  const std::string full = "run/checkpoints/step-000004";
  const Outcome outcome = run_->use("eval", "base", kLora + kFull, {"--from", full});
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_HAS(outcome.output, "'" + full + "': ");
  EXPECT_HAS(outcome.output, ".weight is u8 [648, 1], and there is no [quant]");
}

TEST_F(QuantFiles, AreRefusedByEveryRank) {
  for (const bool is_nested : {false, true}) {
    StoredModel model = models_[is_nested];
    // The last block belongs to another rank than the text of quant_state.
    if (is_nested)
      set_state("nested_offset", -0.5)(model);
    else
      model.tensors.at(kWeight + ".absmax").set(32, -1.0f);
    model.write(run_->folder() / "model");
    const Outcome outcome = run_->use("eval", "model", kQuant + "[[parallel]]\nplugin = \"fsdp2\"\n", {"--nproc", "3"});
    EXPECT_EQ(outcome.exit_code, 7) << outcome.output;
    EXPECT_HAS(outcome.output, std::string(is_nested ? ".nested_offset[0] is -0.5" : ".absmax[32] is -1") +
                                   ", expected a finite number that is not negative");
  }
}

TEST_F(QuantFiles, AreNotMadeOfValuesThatAreNotFinite) {
  StoredModel model = models_[0].dequantized();
  model.tensors.at(kWeight).set(70, std::numeric_limits<float>::quiet_NaN());
  model.write(run_->folder() / "model");
  const Outcome outcome = run_->use("eval", "model", kQuant);
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_HAS(outcome.output, "error: 'model': parameter '" + kWeight + "': plugin 'bnb4'");
  EXPECT_HAS(outcome.output, "a value among elements 64 to 127 is NaN or infinite and cannot be quantized");
}

TEST_F(QuantFiles, OfOtherMethodsAreRefusedByName) {
  const auto config = [](nlohmann::ordered_json about) {
    return [=](StoredModel& model) { model.config["quantization_config"] = about; };
  };
  refused(false, config({{"load_in_8bit", true}, {"quant_method", "bitsandbytes"}}), 2, {"LLM.int8 is not supported"});
  refused(false, config({{"bits", 4}, {"quant_method", "gptq"}}), 2, {"quant_method is 'gptq'"});
  refused(false, config({{"load_in_4bit", true}, {"bnb_4bit_quant_type", "int4"}}), 2, {"'int4', expected nf4 or fp4"});
  refused(false, config({{"load_in_4bit", true}, {"bnb_4bit_quant_storage", "bfloat16"}}), 2,
          {"bnb_4bit_quant_storage is 'bfloat16', and only uint8 is read"});
  refused(false, config("nf4"), 2, {"quantization_config of the model's config.json: it is not a JSON object"});
  // The tensors show what the config does not say.
  refused(false,
          [](StoredModel& model) {
            StoredTensor& codes = model.tensors.at(kWeight);
            codes.dtype = "BF16";
            codes.shape = {static_cast<int64_t>(codes.bytes.size() / 2), 1};
          },
          7, {kWeight + " is bf16[513, 1] with .absmax beside it: codes in a tensor of floats, and only those in u8"});
  refused(false,
          [](StoredModel& model) {
            model.tensors.at(kWeight) = {"I8", {36, 57}, std::string(36 * 57, '\1')};
            model.tensors["model.layers.1.mlp.down_proj.SCB"] = {"F32", {36}, std::string(36 * 4, '\0')};
          },
          7, {kWeight + " is [36, 57] on disk, [1026, 1] in the model", "model.layers.1.mlp.down_proj.SCB [36]"});
}

}  // namespace
}  // namespace chassis::test
