// (IA)³ (Liu et al. 2022, "Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning"):
// learned vectors that multiply keys, values and the input of the feed-forward part's last linear. They start at 1.
#include <nlohmann/json.hpp>
#include <set>

#include "chassis/adapter.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;
using Json = nlohmann::json;
using Names = std::vector<std::string>;

constexpr const char* kVector = "ia3_l";

// "k_proj" is the end of "model.layers.3.self_attn.k_proj".
bool contains(const Names& names, std::string_view module) {
  const std::string_view end = module.substr(module.rfind('.') + 1);
  return std::find(names.begin(), names.end(), end) != names.end();
}

class Ia3 final : public Adapter {
 public:
  static constexpr std::string_view kId = "adapter_cpp";
  static constexpr std::string_view kDoc = "(IA)³: vectors that scale keys, values and feed-forward inputs";

  static const Options& options() {
    static const Options schema = {
        option("outputs", Names{"k_proj", "v_proj"}).doc("linears whose outputs are scaled, by ends of names"),
        option("inputs", Names{"down_proj"}).doc("linears whose inputs are scaled, by the ends of their names"),
    };
    return schema;
  }

  explicit Ia3(const Host& host)
      : Adapter(host),
        outputs_(option_value<Names>(host, "outputs")),
        inputs_(option_value<Names>(host, "inputs")) {}

  // Reads the text that config() wrote. Its values replace the defaults of the options, and must not contradict what
  // the user wrote.
  void configure(std::string_view text) override {
    if (text.empty()) return;
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object() || json.value("peft_type", Json()) != kId)
      fail_invalid("this is not an adapter_config.json of '", kId, "'");
    outputs_ = read(json, "outputs", outputs_);
    inputs_ = read(json, "inputs", inputs_);
  }

  // All parameters of the model stay frozen: trains() is not overridden.
  void extend(const AdapterOp& op, AdapterBuilder& b) override {
    const bool scales_output = contains(outputs_, op.module), scales_input = contains(inputs_, op.module);
    if (!scales_output && !scales_input) return;
    if (!op.is_linear()) fail_invalid("module '", op.module, "' is ", op.op, "; only linears can be scaled");
    if (scales_output && scales_input) fail_invalid("'", op.module, "' is in outputs and in inputs");
    if (op.num_joined > 1)
      fail_invalid("files join the weights of ", op.num_joined, " linears in module '", op.module, "'");
    found_.insert(std::string(op.module.substr(op.module.rfind('.') + 1)));
    // It has the role of a gain, since weight decay would pull it from 1 to 0.
    const Dims& channels = op.weight_axes[scales_output ? 0 : 1];
    const Slot vector = b.slot({kVector, {channels}, CHASSIS_ROLE_NORM, CHASSIS_INIT_ONES, 0});
    if (scales_output)
      b.replace_output(b.channel_scale(op.output, vector));
    else
      b.replace_input(b.channel_scale(op.input, vector));
  }

  void finish() override {
    for (const Names* names : {&outputs_, &inputs_})
      for (const std::string& name : *names)
        if (!found_.contains(name)) fail_invalid("'", name, "' matches no linear of the model");
    if (found_.empty()) fail_invalid("outputs and inputs are empty: nothing would be scaled");
  }

  std::string config(std::string_view base_path, std::string_view) const override {
    const Json json = {
        {"peft_type", kId}, {"base_model_name_or_path", base_path}, {"outputs", outputs_}, {"inputs", inputs_}};
    return json.dump(2) + "\n";
  }

  // Scaled outputs are scaled rows of W and of its bias; scaled inputs are scaled columns of W.
  void merge(const AdapterMerge& merge) const override {
    const std::span<const float> scale = merge.tensor(kVector).values;
    const bool by_row = contains(outputs_, merge.module);
    if (!by_row && merge.parameter == "bias") return;
    for (int64_t row = 0; row < merge.num_rows; ++row)
      for (int64_t column = 0; column < merge.num_columns; ++column) {
        const int64_t channel = by_row ? merge.row_begin + row : merge.column_begin + column;
        merge.values[static_cast<size_t>(row * merge.num_columns + column)] *= scale[static_cast<size_t>(channel)];
      }
  }

 private:
  Names read(const Json& json, const char* option, const Names& given) const {
    const Json list = json.value(option, Json());
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), [](const Json& n) { return n.is_string(); }))
      fail_invalid(option, " is ", list.dump(), ", expected a list of names");
    const Names names = list;
    if (option_differs(host(), options(), option) && names != given)
      fail_invalid(option_origin(host(), option), ": ", option, " differs from adapter.path, which has ", list.dump());
    return names;
  }

  Names outputs_, inputs_;
  std::set<std::string> found_;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "license=Apache-2.0\n",
    Ia3)
