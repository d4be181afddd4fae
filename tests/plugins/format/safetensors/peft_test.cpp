// Adapters in PEFT's file.
#include "plugins/format/safetensors/peft.hpp"

#include <gtest/gtest.h>

#include "chassis/tensor.h"
#include "memory_source.hpp"

namespace safetensors {
namespace {

constexpr char kFile[] = "adapter_model.safetensors";

Request adapter() {
  Request r;
  r.whole("model.layers.0.q_proj.lora_A.weight", CHASSIS_DTYPE_F32, {2, 4});
  return std::move(r.whole("lm_head.weight", CHASSIS_DTYPE_BF16, {3, 4}));
}

TEST(PeftFormat, WritesOneFileWithThePrefixAndReadsNamesWithoutIt) {
  const Files files = write(peft_layout(adapter().get(0)), adapter());
  ASSERT_EQ(files.size(), 1u);
  const std::string& file = files.at(kFile);
  for (const char* text : {R"("__metadata__":{"format":"pt"})", R"("base_model.model.lm_head.weight":)",
                           R"("base_model.model.model.layers.0.q_proj.lora_A.weight":)"})
    EXPECT_NE(file.find(text), std::string::npos) << text << " in " << file.substr(0, 300);
  const Scanned found = scan(peft_scan, files);
  ASSERT_EQ(found.boxes.size(), 2u);
  EXPECT_EQ(found.find("lm_head.weight").global_shape, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(found.find("model.layers.0.q_proj.lora_A.weight").dtype, CHASSIS_DTYPE_F32);
}

TEST(PeftFormat, DoesNotSplitALargeAdapter) { EXPECT_EQ(peft_layout(adapter().get(1)).files.size(), 1u); }

TEST(PeftFormat, LeavesOtherDirectoriesToOtherFormats) {
  EXPECT_THROW(scan(peft_scan, {{"model.safetensors", ""}}), NotFound);
  EXPECT_THROW(scan(peft_scan, {{"adapter_model.bin", "x"}}), NotFound);
}

TEST(PeftFormat, FindsAValueHeadNextToTheAdapter) {
  Files files = write(peft_layout(adapter().get(0)), adapter());
  files["value_head.safetensors"] = value_head_file();
  const Scanned found = scan(peft_scan, files);
  EXPECT_EQ(found.boxes.size(), 4u);
  EXPECT_EQ(found.find("v_head.summary.bias").global_shape, std::vector<int64_t>{1});
}

TEST(PeftFormat, RefusesATensorWithoutThePrefix) {
  Request other;
  other.whole("lm_head.weight", CHASSIS_DTYPE_F32, {1});
  SaveLayout layout = peft_layout(other.get());
  std::string& header = layout.files[0].header;
  header.replace(header.find("base_model.model."), 17, "base_model_model.");
  EXPECT_EQ(defect_of([&] { scan(peft_scan, write(layout, other)); }),
            "adapter_model.safetensors: tensor 'base_model_model.lm_head.weight' does not begin with "
            "'base_model.model.', as those of PEFT do");
  EXPECT_NE(defect_of([&] { scan(peft_scan, {{kFile, "short"}}); }).find("fewer than the 8"), std::string::npos);
}

}  // namespace
}  // namespace safetensors
