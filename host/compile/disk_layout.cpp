// Records the rules that a plugin declares, applies them to every parameter, and checks the result.
#include "host/compile/disk_layout.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "host/base/error.hpp"
#include "host/plugin/sized.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

constexpr std::string_view kIndex = "{i}";

std::string text_of(chassis_str_t s) { return std::string(view_of(s)); }

// Returns the text that `wildcard` stands for if `name` matches `pattern`; "" if a pattern without a wildcard matches.
std::optional<std::string> matched(const std::string& pattern, std::string_view wildcard, std::string_view name) {
  const size_t at = pattern.find(wildcard);
  if (at == pattern.npos) return name == pattern ? std::optional<std::string>("") : std::nullopt;
  const std::string_view prefix = std::string_view(pattern).substr(0, at);
  const std::string_view suffix = std::string_view(pattern).substr(at + wildcard.size());
  if (name.size() < prefix.size() + suffix.size() || !name.starts_with(prefix) || !name.ends_with(suffix)) return {};
  return std::string(name.substr(prefix.size(), name.size() - prefix.size() - suffix.size()));
}

std::string filled(std::string pattern, std::string_view wildcard, const std::string& text) {
  if (const size_t at = pattern.find(wildcard); at != pattern.npos) pattern.replace(at, wildcard.size(), text);
  return pattern;
}

bool is_index(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
         (text == "0" || text[0] != '0');
}

void check_wildcards(const std::string& pattern, std::string_view wildcard) {
  if (pattern.find(wildcard) != pattern.rfind(wildcard))
    throw plugin_error("'" + pattern + "' has more than one " + std::string(wildcard));
}

// A tensor on disk as the plugin declared it; names may contain "{i}".
struct DiskRule {
  struct Part {
    std::string parameter;
    std::vector<int64_t> begin, sizes;
  };
  std::string name;
  std::vector<Part> parts;
  uint32_t join_dim = 0;
  std::vector<int> dims;  // empty: the order of the parts
};

class DiskRecorder {
 public:
  explicit DiskRecorder(const ParameterTable& parameters) : parameters_(parameters) {
    for (const auto& p : parameters.all()) shapes_[p->name] = p->descriptor.global_shape;
    sink_.struct_size = sizeof sink_;
    sink_.impl = this;
    sink_.tensor = [](auto* s, const chassis_disk_rule_t* rule) {
      return guarded([&] { self(s).tensor(read_struct(rule, "the description of a tensor on disk")); });
    };
    sink_.literal = [](auto* s, const chassis_literal_t* literal) {
      return guarded([&] { self(s).literal(read_struct(literal, "the description of a literal tensor")); });
    };
    sink_.skip = [](auto* s, chassis_str_t pattern) { return guarded([&] { self(s).skip(text_of(pattern)); }); };
    sink_.alias = [](auto* s, chassis_str_t pattern, chassis_str_t name) {
      return guarded([&] { self(s).alias(text_of(pattern), text_of(name)); });
    };
  }

  const chassis_disk_sink_t* sink() const { return &sink_; }

  DiskLayout finish() {
    for (const auto& [parameter, shape] : shapes_)
      if (!forms_.contains(parameter)) add(parameter, StoredPart::whole(reserve_name(parameter), shape));
    for (const auto& [name, literal] : literals_) {
      reserve_name(name);
      if (shapes_.contains(name)) throw plugin_error("the literal tensor '" + name + "' has the name of a parameter");
    }
    for (const std::string& pattern : skipped_)
      for (const auto& [name, known] : names_)
        if (matched(pattern, "*", name))
          throw plugin_error("the pattern '" + pattern + "' skips '" + name + "', which is a tensor of the model");
    for (const std::string& parameter : parameters_.left_out())
      if (!has_rule_.contains(parameter)) left_out_.push_back(parameter);
    DiskLayout::Names names = [names = names_, skipped = skipped_, aliases = aliases_,
                               left_out = left_out_](const std::string& in_file) {
      if (names.contains(in_file)) return in_file;
      if (is_left_out(left_out, in_file)) return std::string();
      for (const std::string& pattern : skipped)
        if (matched(pattern, "*", in_file)) return std::string();
      for (const auto& [pattern, name] : aliases)
        if (const auto text = matched(pattern, "*", in_file))
          if (const std::string known = filled(name, "*", *text); names.contains(known)) return known;
      return in_file;
    };
    return {std::move(forms_), std::move(literals_), parameters_, std::move(names), std::move(left_out_)};
  }

 private:
  static DiskRecorder& self(const chassis_disk_sink_t* s) { return *static_cast<DiskRecorder*>(s->impl); }

  void tensor(const chassis_disk_rule_t& raw) {
    DiskRule rule;
    rule.name = text_of(raw.name);
    rule.join_dim = raw.join_dim;
    rule.dims.assign(raw.dims, raw.dims + raw.num_dims);
    check_wildcards(rule.name, kIndex);
    if (raw.num_parts == 0) throw plugin_error("'" + rule.name + "' on disk has no part");
    for (uint32_t i = 0; i < raw.num_parts; ++i) {
      const chassis_disk_part_t part = read_struct(raw.parts[i], "the description of a part of a tensor on disk");
      rule.parts.push_back({text_of(part.parameter),
                            {part.begin, part.begin + part.num_dims},
                            {part.sizes, part.sizes + part.num_dims}});
      const std::string& parameter = rule.parts.back().parameter;
      check_wildcards(parameter, kIndex);
      if ((parameter.find(kIndex) == parameter.npos) != (rule.name.find(kIndex) == rule.name.npos))
        throw plugin_error("'" + rule.name + "' on disk and its part '" + parameter +
                           "' must both have {i}, or neither");
    }
    bool applied = false;
    for (const auto& [name, shape] : shapes_) {
      const auto index = matched(rule.parts.front().parameter, kIndex, name);
      if (!index || (rule.name.find(kIndex) != rule.name.npos && !is_index(*index))) continue;
      place(rule, *index);
      applied = true;
    }
    for (const std::string& name : parameters_.left_out())
      if (const auto index = matched(rule.parts.front().parameter, kIndex, name)) {
        leave_out(rule, *index);
        applied = true;
      }
    if (!applied) throw no_parameter(rule.name, rule.parts.front().parameter);
  }

  // Applies a rule, for one value of "{i}", whose first part is a parameter that the program does not have.
  void leave_out(const DiskRule& rule, const std::string& index) {
    const std::string name = filled(rule.name, kIndex, index);
    for (const DiskRule::Part& part : rule.parts) {
      const std::string parameter = filled(part.parameter, kIndex, index);
      if (std::ranges::count(parameters_.left_out(), parameter) == 0)
        throw joined_with_left_out(name, filled(rule.parts.front().parameter, kIndex, index));
      has_rule_.insert(parameter);
    }
    left_out_.push_back(name);
  }

  static Error no_parameter(const std::string& on_disk, const std::string& parameter) {
    return plugin_error("'" + on_disk + "' on disk is made of '" + parameter +
                        "', which is not a parameter of the model");
  }

  static Error joined_with_left_out(const std::string& on_disk, const std::string& parameter) {
    return plugin_error("'" + on_disk + "' on disk joins parameters, of which this run leaves out '" + parameter +
                        "' and needs others: such a model cannot get a head of scores");
  }

  // Applies the rule for one value of "{i}".
  void place(const DiskRule& rule, const std::string& index) {
    const std::string name = reserve_name(filled(rule.name, kIndex, index));
    const std::string where = "'" + name + "' on disk: ";
    std::vector<std::pair<std::string, StoredPart>> parts;
    Shape joined;
    for (const DiskRule::Part& declared : rule.parts) {
      const std::string parameter = filled(declared.parameter, kIndex, index);
      const auto shape = shapes_.find(parameter);
      if (std::ranges::count(parameters_.left_out(), parameter) > 0) throw joined_with_left_out(name, parameter);
      if (shape == shapes_.end()) throw no_parameter(name, parameter);
      const Box box = box_of(declared, shape->second, where, parameter);
      const Shape sizes = box.sizes();
      const int ndim = sizes.ndim();
      if (parts.empty()) joined = sizes;
      StoredPart part{name, {}, box, Shape::filled(ndim, 0), {}};
      if (!parts.empty()) {
        const auto join_dim = static_cast<int>(rule.join_dim);
        if (ndim != joined.ndim() || rule.join_dim >= static_cast<uint32_t>(ndim))
          throw plugin_error(where + "'" + parameter + "' " + text(sizes) + " cannot be joined along dim " +
                             std::to_string(rule.join_dim) + " with '" + parts.front().first + "' " +
                             text(parts.front().second.box.sizes()));
        for (int d = 0; d < ndim; ++d)
          if (d != join_dim && sizes[d] != joined[d])
            throw plugin_error(where + "'" + parameter + "' " + text(sizes) + " and '" + parts.front().first + "' " +
                               text(parts.front().second.box.sizes()) + " differ in dim " + std::to_string(d) +
                               "; tensors joined along dim " + std::to_string(rule.join_dim) +
                               " may differ only there");
        part.disk_begin[join_dim] = joined[join_dim];
        joined[join_dim] += sizes[join_dim];
      }
      parts.emplace_back(parameter, std::move(part));
    }
    const std::vector<int> dims = order_of(rule, joined, where);
    const auto permuted = [&](const Shape& shape) {
      Shape out = Shape::filled(static_cast<int>(dims.size()), 0);
      for (int k = 0; k < out.ndim(); ++k) out[k] = shape[dims[static_cast<size_t>(k)]];
      return out;
    };
    for (auto& [parameter, part] : parts) {
      part.disk_shape = permuted(joined);
      part.disk_begin = permuted(part.disk_begin);
      part.dims = dims;
      add(parameter, std::move(part));
    }
  }

  static Box box_of(const DiskRule::Part& part, const Shape& shape, const std::string& where,
                    const std::string& parameter) {
    if (part.begin.size() > static_cast<size_t>(shape.ndim()))
      throw plugin_error(where + "a slice has " + std::to_string(part.begin.size()) + " dims, but '" + parameter +
                         "' " + text(shape) + " has " + std::to_string(shape.ndim()));
    Box box = Box::whole(shape);
    for (size_t k = 0; k < part.begin.size(); ++k) {
      const int d = static_cast<int>(k);
      const int64_t begin = part.begin[k], size = part.sizes[k];
      if (begin < 0 || begin >= shape[d] || size < 0 || size > shape[d] - begin)
        throw plugin_error(where + "the slice of size " + std::to_string(size) + " from index " +
                           std::to_string(begin) + " of dim " + std::to_string(d) + " is not within '" + parameter +
                           "' " + text(shape));
      box.begin[d] = begin;
      box.end[d] = size == 0 ? shape[d] : begin + size;
    }
    return box;
  }

  static std::vector<int> order_of(const DiskRule& rule, const Shape& joined, const std::string& where) {
    std::vector<int> dims = rule.dims;
    if (dims.empty()) {
      dims.resize(static_cast<size_t>(joined.ndim()));
      std::iota(dims.begin(), dims.end(), 0);
    }
    for (const int dim : dims)
      if (dim < 0 || dim >= joined.ndim() || std::count(dims.begin(), dims.end(), dim) > 1)
        throw plugin_error(where + "dim " + std::to_string(dim) + " of " + text(joined) +
                           (dim >= 0 && dim < joined.ndim() ? " is listed twice in dims" : " does not exist"));
    for (int d = 0; d < joined.ndim(); ++d)
      if (joined[d] != 1 && std::count(dims.begin(), dims.end(), d) == 0)
        throw plugin_error(where + "dim " + std::to_string(d) + " of " + text(joined) +
                           " is left out of dims, but only dims of size 1 can be");
    return dims;
  }

  void literal(const chassis_literal_t& raw) {
    const std::string name = text_of(raw.name);
    LiteralTensor literal;
    literal.dtype = static_cast<Dtype>(raw.dtype);
    if (size_bytes(literal.dtype) == 0)
      throw plugin_error("the literal tensor '" + name + "' has the unknown dtype " + std::to_string(raw.dtype));
    if (raw.num_dims > Shape::kMaxDims)
      throw plugin_error("the literal tensor '" + name + "' has " + std::to_string(raw.num_dims) +
                         " dims; the maximum is " + std::to_string(Shape::kMaxDims));
    if (raw.num_dims > 0 && raw.sizes == nullptr)
      throw plugin_error("the literal tensor '" + name + "' has dims but no sizes");
    literal.shape = Shape(std::span(raw.sizes, raw.num_dims));
    if (numel(literal.shape) > 0 && raw.data == nullptr)
      throw plugin_error("the literal tensor '" + name + "' has elements but no bytes");
    const auto* bytes = static_cast<const std::byte*>(raw.data);
    literal.bytes.assign(bytes, bytes + numel(literal.shape) * size_bytes(literal.dtype));
    if (!literals_.emplace(name, std::move(literal)).second)
      throw plugin_error("the literal tensor '" + name + "' is declared twice");
  }

  void skip(std::string pattern) {
    check_wildcards(pattern, "*");
    skipped_.push_back(std::move(pattern));
  }

  void alias(std::string pattern, std::string name) {
    check_wildcards(pattern, "*");
    check_wildcards(name, "*");
    aliases_.emplace_back(std::move(pattern), std::move(name));
  }

  // Reserves a name on disk. Throws if it is taken.
  std::string reserve_name(const std::string& name) {
    if (name.empty()) throw plugin_error("a tensor on disk has no name");
    if (!names_.emplace(name, true).second)
      throw plugin_error("two tensors are called '" + name + "' on disk" +
                         (shapes_.contains(name) ? "; a parameter without a rule keeps its own name" : ""));
    return name;
  }

  // A part of a parameter that the parts before it cover begins another form.
  void add(const std::string& parameter, StoredPart part) {
    std::vector<DiskForm>& forms = forms_[parameter];
    int64_t& num_elements = num_elements_[parameter];
    if (forms.empty() || num_elements >= numel(shapes_.at(parameter))) {
      forms.emplace_back();
      num_elements = 0;
    }
    num_elements += numel(part.box);
    forms.back().push_back(std::move(part));
  }

  const ParameterTable& parameters_;
  chassis_disk_sink_t sink_{};
  std::map<std::string, Shape> shapes_;  // by parameter
  std::map<std::string, std::vector<DiskForm>> forms_;  // by parameter
  std::map<std::string, int64_t> num_elements_;         // by parameter: those of its last form
  std::map<std::string, LiteralTensor> literals_;
  std::map<std::string, bool> names_;  // names on disk
  std::vector<std::string> skipped_;
  std::vector<std::pair<std::string, std::string>> aliases_;
  std::vector<std::string> left_out_;  // names on disk
  std::set<std::string> has_rule_;     // parameters that are left out and have a rule
};

}  // namespace

void expect_cover(const std::string& parameter, const Shape& shape, const std::vector<StoredPart>& parts) {
  int64_t num_elements = 0;
  std::string names;
  for (size_t i = 0; i < parts.size(); ++i) {
    num_elements += numel(parts[i].box);
    names += (i ? ", '" : "'") + parts[i].disk_name + "'";
    for (size_t k = 0; k < i; ++k)
      if (const Box twice = intersection(parts[k].box, parts[i].box); !twice.empty())
        throw plugin_error("elements " + text(twice) + " of parameter '" + parameter + "' " + text(shape) +
                           " are on disk in '" + parts[k].disk_name + "' and again in '" + parts[i].disk_name + "'");
  }
  if (num_elements != numel(shape))
    throw plugin_error("parameter '" + parameter + "' " + text(shape) + " has " + std::to_string(numel(shape)) +
                       " elements, of which only " + std::to_string(num_elements) + " are on disk, in " + names);
}

bool is_left_out(std::span<const std::string> left_out, std::string_view name) {
  return std::ranges::any_of(left_out, [&](const std::string& other) {
    return name.starts_with(other) && (name.size() == other.size() || name[other.size()] == '.');
  });
}

DiskLayout::DiskLayout(std::map<std::string, std::vector<DiskForm>> forms,
                       std::map<std::string, LiteralTensor> literals, const ParameterTable& parameters, Names names,
                       std::vector<std::string> left_out)
    : forms_(std::move(forms)),
      literals_(std::move(literals)),
      names_(std::move(names)),
      left_out_(std::move(left_out)) {
  for (const auto& p : parameters.all())
    for (const DiskForm& form : forms_.at(p->name)) expect_cover(p->name, p->descriptor.global_shape, form);
}

bool DiskLayout::has_choice() const {
  return std::ranges::any_of(forms_, [](const auto& entry) { return entry.second.size() > 1; });
}

const DiskForm& DiskLayout::parts(const std::string& parameter, const DiskForms& chosen) const {
  const auto found = chosen.find(parameter);
  return found == chosen.end() ? parts(parameter) : forms(parameter).at(found->second);
}

DiskForms DiskLayout::forms_in(const std::function<bool(const std::string& name)>& has) const {
  DiskForms chosen;
  for (const auto& [parameter, forms] : forms_) {
    if (forms.size() < 2) continue;
    const auto found = std::ranges::find_if(forms, [&](const DiskForm& form) {
      return std::ranges::any_of(form, [&](const StoredPart& part) { return has(part.disk_name); });
    });
    if (found != forms.end() && found != forms.begin()) chosen[parameter] = static_cast<size_t>(found - forms.begin());
  }
  return chosen;
}

std::vector<std::string> DiskLayout::names_of(const DiskForms& chosen) const {
  std::set<std::string> names;  // since one tensor may hold several parameters
  for (const auto& [parameter, form] : chosen) names.insert(forms(parameter).at(form).front().disk_name);
  return {names.begin(), names.end()};
}

DiskLayout record_disk_mapping(const ParameterTable& parameters,
                               const std::function<chassis_status_t*(const chassis_disk_sink_t*)>& declare) {
  DiskRecorder recorder(parameters);
  throw_if_failed(declare(recorder.sink()), "declaring how files hold the model");
  return recorder.finish();
}

}  // namespace chassis
