// The conformance tests of quantizations find each fault of a nonconforming one.
#include "host/conformance/quant_checks.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

#include "host/conformance/quant_product.hpp"
#include "tests/support/expect_has.hpp"
#include "tests/support/loaded_plugins.hpp"

namespace chassis {
namespace {

class QuantConformance : public testing::Test {
 protected:
  ~QuantConformance() override { ::unsetenv("NONCONFORMING"); }

  std::string failures(const std::string& fault) {
    ::setenv("NONCONFORMING", fault.c_str(), 1);
    return joined(quant_failures(QuantPlugin(plugins_.create("quant", "nonconforming_quant")),
                                 QuantPlugin(plugins_.create("quant", "nonconforming_quant"))));
  }
  QuantProducts products(const std::string& id, const std::string& fault = "") {
    ::setenv("NONCONFORMING", fault.c_str(), 1);
    const QuantPlugin plugin(plugins_.create("quant", id));
    plugin.configure("");
    return compare_quant_products(plugin, oracles_);
  }
  static std::string joined(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
  }

  test::LoadedPlugins plugins_{{CHASSIS_TEST_PLUGIN_DIR, CHASSIS_TEST_STUB_DIR}};
  std::vector<OpsProvider> oracles_ = {plugins_.ops("reference"), plugins_.ops("naive")};
};

TEST_F(QuantConformance, CorrectOnesPass) {
  EXPECT_EQ(failures(""), "");
  const QuantProducts own = products("nonconforming_quant"), bnb4 = products("bnb4");
  EXPECT_EQ(joined(own.failures), "");
  EXPECT_EQ(joined(bnb4.failures), "");
  EXPECT_GT(own.num_compared, 0u);
  EXPECT_EQ(bnb4.num_compared, 2 * (own.num_compared + 3)) << "in bf16, too, and experts";
}

TEST_F(QuantConformance, FindsComponentsThatDependOnMoreThanValues) {
  EXPECT_HAS(failures("depends on cuts"), "a weight [64, 128]: cut at element 16, its components have other bytes");
  EXPECT_HAS(failures("depends on cuts"), "encoded block by block, its components have other bytes");
}

TEST_F(QuantConformance, FindsBytesThatDependOnWhatWasThereBefore) {
  EXPECT_HAS(failures("adds bits"), "a weight [64, 128]: its bytes depend on what its components hold before");
  EXPECT_HAS(failures("first range"), "encoded after another weight, its bytes differ");
  EXPECT_HAS(failures("in one order"), "encoded block by block, the last one first, its components have other bytes");
}

TEST_F(QuantConformance, FindsValuesThatAreLost) {
  const std::string lost = " of the norm of the encoded ones away from these, at most 0.75 expected";
  EXPECT_HAS(failures("stores zeros"), "a weight [64, 128]: decoded values are 1.00" + lost);
  EXPECT_HAS(failures("another sign"), "decoded values are 2.00" + lost);
}

TEST_F(QuantConformance, FindsWrongAnswers) {
  EXPECT_HAS(failures("finds components"), "configure() finds components without a configuration");
  EXPECT_HAS(failures("stores nothing"), "parameter() does not store the weight of a linear");
  EXPECT_HAS(failures("accepts NaN"), "encode() accepts the value nan");
  EXPECT_HAS(failures("refuses its own"), "verify() refuses what encode() made");
  EXPECT_HAS(failures("accepts NaN scales"),
             "a weight [64, 128]: verify() accepts NaN as value 256 of component 1 '.scale', by which element 4096 is "
             "decoded as nan");
  EXPECT_HAS(failures("no config"), "config() is not a JSON object");
  EXPECT_HAS(failures("refuses its config"), "configure() refuses what config() wrote: ");
  EXPECT_HAS(failures("forgets its files"), "configure() does not say that the files of a model");
}

TEST_F(QuantConformance, ComponentsThatNobodyFillsAreRefused) {
  try {
    failures("does not finish");
    ADD_FAILURE() << "a map without finish()";
  } catch (const Error& error) {
    EXPECT_HAS(std::string(error.what()), "its chassis.quant/1 has no function finish, which component 1 '.map' of ");
  }
}

TEST_F(QuantConformance, FindsProductsThatAreNotThoseOfTheDecodedWeights) {
  const auto found = [&](const std::string& fault) { return joined(products("nonconforming_quant", fault).failures); };
  EXPECT_HAS(found("rows in blocks of their own"), "linear [21, 20] of 26 rows in f32: y[");
  EXPECT_HAS(found("no bias"), "linear [57, 36] with a bias of 26 rows in f32: y[");
  EXPECT_HAS(found("half a gradient"), "linear [21, 20] of 26 rows in f32: the gradient of x[");
  EXPECT_HAS(found("does not add"), "sum of two, linear [36, 57] of 26 rows in f32: the gradient of x[");
  EXPECT_HAS(found("forgets the bias"), "the gradient of linear_0.bias in the second micro-batch[");
  EXPECT_HAS(found("other bits"), "the same call gives other bits when it is repeated");
  EXPECT_HAS(found("half a gradient"), "linear [57, 36] with a bias of 30 rows of 4 dims in f32: the gradient of x[");
  EXPECT_EQ(found("half a gradient").find("with a bias of 3 rows in f32: y"), std::string::npos);
}

TEST_F(QuantConformance, SaysWhyNoProductWasCompared) {
  const QuantProducts none = products("nonconforming_quant", "computes nothing");
  EXPECT_EQ(none.num_compared, 0u);
  EXPECT_HAS(none.left_out, "linear [21, 20] of 26 rows in f32: no provider computes linear");
  EXPECT_HAS(none.left_out, "not this one");
}

}  // namespace
}  // namespace chassis
