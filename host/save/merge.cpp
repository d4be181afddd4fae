// Reads regions of both directories, lets the adapter change them, and casts them into the files.
#include "host/save/merge.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "host/base/file.hpp"
#include "host/base/json.hpp"
#include "host/base/log.hpp"
#include "host/base/printable.hpp"
#include "host/checkpoint/inspect.hpp"
#include "host/save/base_reference.hpp"
#include "host/save/conversion.hpp"
#include "host/save/opened_model.hpp"
#include "host/save/quantize.hpp"
#include "host/save/saved_head.hpp"
#include "host/save/saved_tensors.hpp"
#include "host/state/float_dtype.hpp"

namespace chassis {
namespace {

constexpr int64_t kChunkElements = 1 << 20;  // elements changed at a time

// A directory, and the values that are read from it.
struct Opened {
  OpenedModel model;
  CheckpointReader::Values values;

  Opened(Session& session, const std::string& path, bool is_adapter)
      : model(session, path, is_adapter), values(model.reader()) {
    if (session.quant() != nullptr && !is_adapter) model.quantize();
  }
  void read(const Parameter& p, const Descriptor& descriptor, const Box& chunk, std::span<float> out, bool hashed) {
    if (!model.has_components(p)) return values.read(model.directory().parts(descriptor), chunk, out, hashed);
    const auto rows = row_major_view(descriptor.global_shape, chunk);
    for_each_run({chunk, rows, {0, row_major_strides(chunk.sizes())}}, [&](int64_t from, int64_t to, int64_t length) {
      model.quantized()->decode(p, from, out.subspan(static_cast<size_t>(to), static_cast<size_t>(length)));
    });
  }
  // The parts that were read for content_hash().
  std::vector<PartRead> hashed() {
    std::vector<PartRead> all = values.hashed();
    if (model.quantized() != nullptr) std::ranges::copy(model.quantized()->hashed(), std::back_inserter(all));
    return all;
  }
};

Error numeric_error(const std::string& what) { return Error(ExitCode::kNumeric, what); }

template <class Visit>
void for_each_chunk(const Box& box, const Visit& visit) {
  if (numel(box) <= kChunkElements) return visit(box);
  int dim = 0;
  while (box.end[dim] - box.begin[dim] == 1) ++dim;
  Box first = box, second = box;
  first.end[dim] = second.begin[dim] = box.begin[dim] + (box.end[dim] - box.begin[dim]) / 2;
  for_each_chunk(first, visit);
  for_each_chunk(second, visit);
}

class Merge {
 public:
  Merge(Session& session, const std::string& base, const std::string& trained)
      : session_(session), names_(session), trained_(session, trained, is_adapter_directory(trained)) {
    const Content content = trained_.model.directory().content();
    if (content == Content::kModel)
      throw storage_error("'" + trained + "' holds a whole model and no adapter: there is nothing to merge");
    if (const CheckpointManifest* manifest = trained_.model.reader().manifest())
      reference_ = base_reference(manifest->about, trained);
    trained_.model.check();
    if (content != Content::kAll) {
      if (base.empty()) throw storage_error("'" + trained + "' has no frozen weights, and its base model is not known");
      base_.emplace(session, base, false);
      if (base_->model.directory().content() != Content::kModel)
        throw storage_error("'" + base + "' is not a model: it holds what was trained on one");
      base_->model.check();
      for (const std::string& name : base_->model.directory().left_out())
        log::info("{} of {} is left out: the merged model scores", printable(name), base);
      if (!reference_) compare_base_name(trained, base, "its base model");
    }
    if (reference_ && !reference_->quant.empty()) {
      if (has_components())
        compare_quantization(session, trained, *reference_);
      else
        counted_warning("an adapter of quantized weights is merged into others",
                        "'" + trained + "' was trained on weights that " + printable(reference_->quant) +
                            " stores in fewer bits, and is merged into those in " + model().path());
    }
    session_.export_as(model().directory().forms());
    read_added();
  }

  // The merged model; with `keep_quantized`, quantized again as the base is.
  ModelContents contents(bool keep_quantized) {
    return {.quantized = keep_quantized ? &quantized() : nullptr,
            .values = [this](const SavePlan& plan, const SavePart& part,
                             const ReserveBytes& room) { fill(plan, part, room); },
            .on_read = [this] { compare_base(); }};
  }

 private:
  // Fills the room for a part of a plan.
  void fill(const SavePlan& plan, const SavePart& part, const ReserveBytes& room) {
    const Descriptor& descriptor = plan.tensors[part.tensor].descriptor;
    const Parameter& p = *session_.parameters().find(descriptor.fqn);
    Opened& from = base_ && !trained_.model.directory().has(p) ? *base_ : trained_;
    const Dtype dtype = plan.boxes[part.box].dtype;
    for_each_chunk(part.region, [&](const Box& chunk) {
      const int64_t count = numel(chunk);
      values_.resize(static_cast<size_t>(count));
      from.read(p, descriptor, chunk, values_, &from != &trained_);
      apply(p, chunk, values_);
      check_values(p, dtype, values_);
      const Tensor flat = Tensor::borrow(values_.data(), std::vector<int64_t>{count}, Dtype::f32);
      const Piece piece{chunk, {0, row_major_strides(chunk.sizes())}, true};
      for (const Copy& copy : copies({piece}, {part.place(plan)})) cast_into(room, flat, copy, dtype);
    });
  }

  // The components of the base model, which are then changed by the adapter and quantized again.
  QuantizedWeights& quantized() {
    if (!has_components())
      throw storage_error("'" + model().path() + "' holds no quantized weights, which could be kept")
          .hint("merge, then `chassis ckpt quantize DIR --out DIR`");
    model().quantized()->change_values([this](const Parameter& p, const Box& rows, std::span<float> values) {
      apply(p, rows, values);
      check_values(p, Dtype::f32, values);
    });
    counted_warning("merged weights are quantized again",
                    "'" + model().path() + "' is quantized, and so is what is merged into it: it loses precision");
    return *model().quantized();
  }

  // Throws if the base that was read is not the one that the checkpoint refers to. For an adapter, only counts a
  // warning: it may be meant for another base, such as the model that was quantized to train it.
  void compare_base() {
    if (!reference_ || !base_) return;
    World alone;
    const std::string hash = base_->model.reader().content_hash(base_->hashed(), alone);
    if (hash == reference_->hash) return;
    const std::string what = BaseReference{base_->model.path(), hash}.text() + " is not the model on which '" +
                             trained_.model.path() + "' was trained, " + reference_->text();
    if (trained_.model.directory().content() != Content::kAdapter)
      throw storage_error(what).hint("give that model with --base DIR");
    counted_warning("the adapter was made for another model", what);
  }

  // The directory of the base weights.
  OpenedModel& model() { return base_ ? base_->model : trained_.model; }
  bool has_components() {
    return std::ranges::any_of(session_.parameters().all(), [&](const auto& p) { return model().has_components(*p); });
  }
  void read_added() {
    for (const auto& [name, module] : names_.modules()) {
      if (module.is_tied) throw storage_error(tied_branch_text(name));
      for (const Parameter* p : module.added) {
        const Descriptor& d = p->descriptor;
        std::vector<float>& values = added_[p->name];
        values.resize(static_cast<size_t>(numel(d.global_shape)));
        trained_.values.read(trained_.model.directory().parts(d), Box::whole(d.global_shape), values);
        if (!std::ranges::all_of(values, [](float x) { return std::isfinite(x); }))
          throw numeric_error("'" + p->name + "' in " + trained_.model.path() + " has a value that is not finite");
      }
    }
  }

  void apply(const Parameter& p, const Box& chunk, std::span<float> values) {
    const AdapterNames::Module* const module = names_.module_of(p);
    if (module == nullptr) return;
    const int ndim = chunk.ndim();
    if (ndim < 1 || ndim > 3)
      throw plugin_error("'" + p.name + "' has " + std::to_string(ndim) + " dims; adapters merge into 1 to 3");
    std::vector<const Parameter*> all = module->added;
    all.insert(all.end(), module->shared.begin(), module->shared.end());
    std::vector<std::string> names;
    for (const Parameter* added : all) names.push_back(names_.name_in_module(*added));
    std::vector<chassis_adapter_tensor_t> tensors;
    std::vector<const chassis_adapter_tensor_t*> pointers;
    for (size_t i = 0; i < names.size(); ++i) {
      const Shape& shape = all[i]->descriptor.global_shape;
      tensors.push_back({sizeof(chassis_adapter_tensor_t),
                         static_cast<uint32_t>(shape.ndim()),
                         {names[i].data(), names[i].size()},
                         shape.begin(),
                         added_.at(all[i]->name).data()});
    }
    for (const auto& tensor : tensors) pointers.push_back(&tensor);
    const std::string parameter = names_.name_in_module(p);
    chassis_adapter_merge_t merge{};
    merge.struct_size = sizeof merge;
    merge.num_tensors = static_cast<uint32_t>(tensors.size());
    merge.module = {module->in_files.data(), module->in_files.size()};
    merge.parameter = {parameter.data(), parameter.size()};
    merge.name = {p.name.data(), p.name.size()};
    const int row = ndim == 3 ? 1 : 0, column = row + 1;
    merge.row_begin = chunk.begin[row];
    merge.num_rows = chunk.end[row] - chunk.begin[row];
    merge.column_begin = ndim > 1 ? chunk.begin[column] : 0;
    merge.num_columns = ndim > 1 ? chunk.end[column] - chunk.begin[column] : 1;
    merge.tensors = pointers.data();
    merge.values = values.data();
    merge.expert = ndim == 3 ? chunk.begin[0] : 0;
    const int64_t num_matrices = ndim == 3 ? chunk.end[0] - chunk.begin[0] : 1;
    for (int64_t i = 0; i < num_matrices; ++i, ++merge.expert, merge.values += merge.num_rows * merge.num_columns)
      session_.adapter()->plugin().merge(merge);
  }

  void check_values(const Parameter& p, Dtype dtype, std::span<const float> values) const {
    // Values of at least this size round to infinity.
    const float limit = dtype == Dtype::f16 ? 65520.0f : dtype == Dtype::bf16 ? 0x1.ffp127f : INFINITY;
    for (const float value : values) {
      if (!std::isfinite(value)) throw numeric_error("the merged '" + p.name + "' has a value that is not finite");
      if (std::abs(value) >= limit)
        throw numeric_error("the merged '" + p.name + "' has the value " + std::to_string(value) +
                            ", which overflows " + std::string(float_dtype_name(dtype)))
            .hint("merge into bf16 or fp32 instead");
    }
  }

  Session& session_;
  const AdapterNames names_;
  Opened trained_;
  std::optional<Opened> base_;  // absent if `trained_` has all parameters
  std::optional<BaseReference> reference_;
  std::map<std::string, std::vector<float>> added_;
  std::vector<float> values_;  // values of one chunk
};

void require_mergeable(const Session& session) {
  if (const RunAdapter* adapter = session.adapter(); adapter != nullptr && !adapter->plugin().can_merge())
    throw config_error("adapter '" + adapter->member() + "' cannot be merged");
}

// The directory of the base model of what was trained.
std::string base_of(const MergeRequest& request) {
  if (!request.base.empty()) return request.base;
  std::string named;
  const auto is_model = [](const std::string& path) {
    return !path.empty() && path_kind(path + "/config.json") != PathKind::kAbsent;
  };
  if (SourceDirectory directory(request.trained); directory.find_file(kManifestName) >= 0) {
    const CheckpointManifest manifest = CheckpointManifest::read(directory);
    const std::optional<BaseReference> base = base_reference(manifest.about, request.trained);
    if (base) named = base->path;
    if (!base && manifest.format != kAdapterFormat) return request.trained;  // it has all parameters
  }
  if (is_model(named)) return named;
  if (const std::string other = named_base(request.trained); !other.empty()) named = other;
  if (is_model(named)) return named;
  throw storage_error("'" + request.trained + "' is merged into its base model, and " +
                      (named.empty() ? "names none" : "'" + named + "', which it names, is not a model directory here"))
      .hint("give that model with --base DIR");
}

}  // namespace

SaveResult merge_weights(Session& session, const std::string& base, const std::string& trained, SaveRequest request,
                         const BucketPair& buckets) {
  require_mergeable(session);
  Merge merge(session, base, trained);
  return write_model(session, merge.contents(false), std::move(request), buckets);
}

SaveResult merge_checkpoint(const MergeRequest& request) {
  refuse_adapter_format(request.format);
  compare_with_manifest(request.trained);
  const std::string base = base_of(request);
  WeightsConfig model{.model = base, .dtype = request.dtype, .format = request.format};
  if (path_kind(request.trained + "/" + kAdapterConfigName) != PathKind::kAbsent) {
    model.adapter_plugin = request.adapter.empty() ? adapter_plugin_of(request.trained) : request.adapter;
    model.adapter = request.trained;
    model.merges_adapter = true;
  }
  const bool is_quantized = has_quantized_weights(base);
  if (is_quantized) model.quant_plugin = quant_plugin(request.quant, request.plugin_path);
  if (request.keep_quantized && !is_quantized)
    throw config_error("--keep-quantized: '" + base + "' is not quantized")
        .hint("merge, then `chassis ckpt quantize DIR --out DIR`");
  const std::optional<ScoreHead> head = saved_head(request.trained, base, request.plugin_path);
  const bool adds_head = head && !saved_head(base, base, request.plugin_path);
  Conversion conversion("ckpt merge", model, request.plugin_path, request.directory, {request.trained, base},
                        adds_head ? head->num_labels : 0);
  Session& session = conversion.session();
  SaveRequest save;
  save.mode = shared_file_mode(base) & shared_file_mode(request.trained);
  save.text_files = {{"config.json", export_config(session, request.keep_quantized, head ? &*head : nullptr)}};
  save.carried_files = files_to_copy(request.trained, {"config.json"});
  std::set<std::string> taken = {"config.json"};
  for (const CopiedFile& file : save.carried_files) taken.insert(file.name);
  for (CopiedFile& file : files_to_copy(base, taken)) save.carried_files.push_back(std::move(file));
  if (SourceDirectory directory(request.trained); directory.find_file(kManifestName) >= 0)
    save.step = CheckpointManifest::read(directory).step;
  require_mergeable(session);
  Merge merge(session, base, request.trained);
  return conversion.write(merge.contents(request.keep_quantized), std::move(save));
}

}  // namespace chassis
