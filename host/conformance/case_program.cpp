// Chains of ops for patterns that have no program of their own.
#include "host/conformance/case_program.hpp"

#include "host/base/error.hpp"

namespace chassis {
namespace {

// Appends ops, each of which reads the value before it.
class PatternChain {
 public:
  PatternChain(const std::vector<std::string>& pattern, bool keeps_all)
      : pattern_(pattern), keeps_all_(keeps_all), case_(name_of(pattern, keeps_all)) {}

  std::optional<CaseProgram> run() {
    for (size_t i = 0; i < pattern_.size(); ++i) {
      if (!append(i)) return std::nullopt;
      const bool is_last = i + 1 == pattern_.size();
      if (is_last || keeps_all_) case_.output(is_last ? last_name_ : "value " + std::to_string(i), value_);
    }
    return std::move(case_);
  }

 private:
  static std::string name_of(const std::vector<std::string>& pattern, bool keeps_all) {
    std::string text;
    for (const std::string& id : pattern) text += (text.empty() ? "" : "+") + id;
    return keeps_all ? text + ", all kept" : text;
  }
  std::string numbered(const char* name, size_t i) const { return name + std::to_string(i); }
  bool comes(size_t i, std::string_view id) const { return i < pattern_.size() && pattern_[i] == id; }

  // The dims that op i expects of its input: heads and head_dim for ops on heads.
  std::vector<DimId> wanted_dims(size_t i) {
    if (comes(i, "rope") || comes(i, "attention")) return {case_.dim("heads", 3), case_.dim("head_dim", kHeadDim)};
    if (comes(i, "cross_entropy") || comes(i, "partial_cross_entropy") || comes(i, "token_logp"))
      return {case_.dim("vocab", 29)};
    return {case_.dim(numbered("n", i).c_str(), i == 0 ? 37 : 21 + static_cast<int64_t>(i))};
  }

  bool append(size_t i) {
    const std::string& id = pattern_[i];
    if (has_ended_) return false;
    if (id == "embedding") {
      if (i > 0) return false;
      const DimId vocab = case_.dim("vocab_in", 29);
      dims_ = wanted_dims(i + 1);
      if (dims_.size() != 1) return false;
      value_ = case_.op("embedding", {case_.field("input_ids")}, {case_.slot("table", {{vocab}, dims_})});
      return true;
    }
    if (i == 0) {
      dims_ = wanted_dims(0);
      value_ = case_.input("x", dims_);
    }
    const DimId last = dims_.back();
    const auto weight = [&] { return case_.slot(numbered("weight", i), {{last}}); };
    if (id == "linear") {
      const std::vector<DimId> in = dims_;
      dims_ = wanted_dims(i + 1);
      value_ = case_.op("linear", {value_}, {case_.slot(numbered("weight", i), {dims_, in})}, {}, dims_);
    } else if (id == "rms_norm") {
      value_ = case_.op("rms_norm", {value_}, {weight()}, {{"eps", 1e-5}});
    } else if (id == "layer_norm") {
      const SlotId bias = case_.slot(numbered("bias", i), {{last}});
      value_ = case_.op("layer_norm", {value_}, {weight(), bias}, {{"eps", 1e-5}});
    } else if (id == "rope") {
      if (dims_.size() != 2) return false;
      value_ = case_.op(
          "rope", {value_, case_.field("positions")}, {},
          {{"inv_freq", std::vector<double>{1.0, 0.3, 0.1, 0.03, 0.01}}, {"factor", 1.0}, {"interleaved", int64_t{0}}});
    } else if (id == "attention") {
      if (dims_.size() != 2) return false;
      const ValueId k = case_.input("k", dims_), v = case_.input("v", dims_);
      value_ = case_.op("attention", {value_, k, v}, {}, {{"causal", int64_t{1}}, {"scale", 0.2}});
    } else if (id == "gated_activation" || id == "activation") {
      std::vector<ValueId> inputs = {value_};
      if (id == "gated_activation") inputs.push_back(case_.input(numbered("up", i).c_str(), dims_));
      value_ = case_.op(id.c_str(), inputs, {}, {{"function", std::string("silu")}});
    } else if (id == "add" || id == "mul") {
      value_ = case_.op(id.c_str(), {value_, case_.input(numbered("other", i).c_str(), dims_)});
    } else if (id == "scale" || id == "softcap" || id == "clip" || id == "dropout") {
      const char* const attr = id == "scale" ? "factor" : id == "softcap" ? "cap" : id == "clip" ? "limit" : "p";
      value_ = case_.op(id.c_str(), {value_}, {}, {{attr, id == "dropout" ? 0.3 : 1.5}});
    } else if (id == "channel_scale") {
      value_ = case_.op("channel_scale", {value_}, {weight()});
    } else if (id == "cross_entropy" || id == "token_logp") {
      if (dims_.size() != 1) return false;
      value_ = case_.op(id.c_str(), {value_, case_.field("labels")}, {}, {{"ignore_index", int64_t{-100}}});
      if (id == "cross_entropy") last_name_ = "loss";
      has_ended_ = true;
    } else if (id == "score") {
      if (dims_.size() != 1) return false;
      value_ = case_.op("score", {value_}, {case_.slot(numbered("weight", i), {{case_.dim("labels", 3)}, dims_})});
      has_ended_ = true;
    } else {
      return false;  // a plugin's own op has no reference; the others are tested only by programs of their own
    }
    return true;
  }

  static constexpr int64_t kHeadDim = 10;
  const std::vector<std::string>& pattern_;
  const bool keeps_all_;
  CaseProgram case_;
  ValueId value_ = kAbsent;
  std::vector<DimId> dims_;  // dims of value_, without B and T
  std::string last_name_ = "y";
  bool has_ended_ = false;
};

}  // namespace

std::optional<CaseProgram> pattern_case(const std::vector<std::string>& pattern, bool keeps_all) {
  try {
    return PatternChain(pattern, keeps_all).run();
  } catch (const Error&) {  // an op's rules refuse the result of the op before it
    return std::nullopt;
  }
}

}  // namespace chassis
