// The JSON text of quant_state, and quantization_config.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "chassis/guard.hpp"
#include "plugins/quant/bnb4/quant_state.hpp"
#include "plugins/quant/bnb4/settings.hpp"

namespace bnb4 {
namespace {

const std::string kPlain = R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [48, 32]})";
const std::string kNested =
    R"({"quant_type": "fp4", "blocksize": 128, "dtype": "float32", "shape": [8, 896], "nested_blocksize": 256, )"
    R"("nested_dtype": "float32", "nested_offset": 0.04288001358509064})";

std::string refusal(const std::string& text) {
  try {
    parse_quant_state(text);
  } catch (const chassis::Failure& failure) {
    return failure.what();
  }
  return "accepted";
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(QuantState, IsWrittenByteForByteAsItWasRead) {
  for (const std::string& text : {kPlain, kNested}) EXPECT_EQ(quant_state_text(parse_quant_state(text)), text);
  const QuantState state = parse_quant_state(kNested);
  EXPECT_EQ(state.code, Code::kFp4);
  EXPECT_EQ(state.block_size, 128);
  EXPECT_TRUE(state.is_nested);
  EXPECT_EQ(state.nested_offset, 0.04288001358509064f);
  EXPECT_EQ(state.shape, (std::vector<int64_t>{8, 896}));
}

TEST(QuantState, IsReadInAnyOrderAndWithPrefixes) {
  const std::string text = R"({"w.shape": [48, 32], "w.dtype": "bfloat16", "w.quant_type": "nf4", "w.blocksize": 64})";
  EXPECT_EQ(parse_quant_state(text), parse_quant_state(kPlain));
}

TEST(QuantState, IsRefusedWithTheKeyThatIsWrong) {
  const std::pair<std::string, std::string> kCases[] = {
      {with(kPlain, "nf4", "nf3"), "quant_state: quant_type is \"nf3\", expected \"nf4\" or \"fp4\""},
      {with(kPlain, "64", "63"), "quant_state: blocksize is 63, expected a power of 2 from 32 to 4096"},
      {with(kPlain, "64", "8192"), "quant_state: blocksize is 8192"},
      {with(kPlain, "64", "64.0"), "quant_state: blocksize is 64.0, expected a whole number"},
      {with(kPlain, "bfloat16", "int8"), "quant_state: dtype is \"int8\""},
      {with(kPlain, "[48, 32]", "[48, -32]"), "quant_state: shape is [48,-32], expected whole numbers"},
      {with(kPlain, "[48, 32]", "null"), "quant_state: shape is null, expected a list of 1 to 8 sizes"},
      {with(kPlain, "[48, 32]", "[1099511627776, 1099511627776]"), "which has more than 2^63 elements"},
      {with(kPlain, "\"dtype\"", "\"type\""), "quant_state: unknown key \"type\""},
      {with(kPlain, "\"dtype\": \"bfloat16\", ", ""), "quant_state: it has no key dtype"},
      {with(kPlain, "{", "{\"blocksize\": 32, "), "quant_state: key \"blocksize\" is there twice"},
      {with(kPlain, "{", "{\"a.blocksize\": 32, "), "quant_state: key \"blocksize\" is there twice"},
      {with(kNested, "256", "128"), "quant_state: nested_blocksize is 128, expected 256"},
      {with(kNested, "\"nested_dtype\": \"float32\", ", ""), "quant_state: it has no key nested_dtype"},
      {with(kNested, "\"nested_dtype\": \"float32\"", "\"nested_dtype\": \"bfloat16\""),
       "quant_state: nested_dtype is \"bfloat16\""},
      {with(kNested, "0.04288001358509064", "1e39"), "which is not a finite fp32 number"},
      {with(kNested, "0.04288001358509064", "NaN"), "it is not JSON text"},
      {"", "quant_state: it is not JSON text"},
      {"[1]", "quant_state: it is array, expected an object"},
      {R"({"shape": [[[[1]]]]})", "nested deeper than a list"},
      {std::string(100'000, ' '), "quant_state: it has 100000 bytes; the maximum is 65536"},
  };
  for (const auto& [text, expected] : kCases)
    EXPECT_NE(refusal(text).find(expected), std::string::npos) << text << "\n" << refusal(text);
}

TEST(PythonFloat, IsWrittenAsPythonDoes) {
  EXPECT_EQ(python_float(0.04288001358509064), "0.04288001358509064");
  EXPECT_EQ(python_float(1.0), "1.0");
  EXPECT_EQ(python_float(0.0), "0.0");
  EXPECT_EQ(python_float(-2.5), "-2.5");
  EXPECT_EQ(python_float(1e-05), "1e-05");
  EXPECT_EQ(python_float(0.0001), "0.0001");
  EXPECT_EQ(python_float(1.5e-07), "1.5e-07");
  EXPECT_EQ(python_float(1e16), "1e+16");
  EXPECT_EQ(python_float(123456789012345.0), "123456789012345.0");
  EXPECT_EQ(python_float(1.25e-300), "1.25e-300");
}

TEST(QuantizationConfig, IsReadAndWritten) {
  Settings settings;
  settings.is_nested = true;
  settings.block_size = 128;
  settings.skip = {"lm_head", "down_proj"};
  const FileSettings read = parse_quantization_config(quantization_config_text(settings));
  EXPECT_EQ(read.code, Code::kNf4);
  EXPECT_TRUE(read.is_nested);
  EXPECT_EQ(read.skip, settings.skip);
  EXPECT_EQ(read.block_size, 128);
  EXPECT_FALSE(read.has_experts);
  EXPECT_FALSE(parse_quantization_config(quantization_config_text({})).block_size) << "transformers has no such key";
  settings.has_experts = true;
  EXPECT_EQ(parse_quantization_config(quantization_config_text(settings)).has_experts, true);
  EXPECT_EQ(parse_quantization_config(R"({"load_in_4bit": true})").code, Code::kFp4) << "bitsandbytes' default";
  EXPECT_TRUE(read.unknown_keys.empty()) << "what is written here is known";
}

TEST(QuantizationConfig, NamesTheKeysThatItDoesNotKnow) {
  const FileSettings read = parse_quantization_config(R"({"load_in_4bit": true, "bnb_4bit_block": 128, "x": {}})");
  EXPECT_EQ(read.unknown_keys, (std::vector<std::string>{"bnb_4bit_block", "x"}));
}

TEST(QuantizationConfig, NamesTheHeadInAListThatIsGiven) {
  Settings settings;
  EXPECT_TRUE(parse_quantization_config(quantization_config_text(settings)).skip.empty());
  settings.skip = {"down_proj"};
  EXPECT_EQ(parse_quantization_config(quantization_config_text(settings)).skip,
            (std::vector<std::string>{"down_proj", "lm_head"}));
}

TEST(QuantizationConfig, OfOtherMethodsIsRefusedByName) {
  const auto refused = [](const std::string& text) {
    try {
      parse_quantization_config(text);
    } catch (const chassis::Failure& failure) {
      return std::string(failure.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refused(R"({"load_in_8bit": true})").find("LLM.int8 is not supported"), std::string::npos);
  EXPECT_NE(refused(R"({"quant_method": "gptq", "bits": 4})").find("quant_method is 'gptq'"), std::string::npos);
  EXPECT_NE(refused(R"({"load_in_4bit": true, "bnb_4bit_quant_storage": "bfloat16"})").find("only uint8 is read"),
            std::string::npos);
  EXPECT_NE(refused(R"({"load_in_4bit": 1})").find("load_in_4bit is 1, expected true or false"), std::string::npos);
  for (const char* size : {"100", "16", "8192", "-64", "64.0", "18446744073709551615"})
    EXPECT_NE(refused(R"({"load_in_4bit": true, "bnb_4bit_blocksize": )" + std::string(size) + "}")
                  .find("expected a power of 2 from 32 to 4096"),
              std::string::npos)
        << size;
  EXPECT_NE(refused("[]").find("it is not a JSON object"), std::string::npos);
}

TEST(SkippedModules, AreNamedByTheirEndOrBeginning) {
  EXPECT_TRUE(is_skipped({"down_proj"}, "model.layers.3.mlp.down_proj"));
  EXPECT_TRUE(is_skipped({"model.layers.3"}, "model.layers.3.mlp.down_proj"));
  EXPECT_TRUE(is_skipped({"lm_head"}, "lm_head"));
  EXPECT_TRUE(is_skipped({"proj"}, "model.layers.3.mlp.down_proj"));
  EXPECT_FALSE(is_skipped({"down"}, "model.layers.3.mlp.down_proj"));
  EXPECT_FALSE(is_skipped({"model.layers.3"}, "model.layers.31.mlp.down_proj"));
}

}  // namespace
}  // namespace bnb4
