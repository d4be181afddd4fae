// Opens a directory, and lists what it must have.
#include "host/save/opened_model.hpp"

#include <map>

#include "host/checkpoint/inspect.hpp"
#include "host/save/adapter_files.hpp"
#include "host/save/saved_tensors.hpp"

namespace chassis {
namespace {

std::unique_ptr<CheckpointReader> open_files(Session& session, const std::string& path, bool is_adapter,
                                             OpenChecks checks) {
  std::unique_ptr<CheckpointReader> reader = is_adapter ? open_adapter(session, path) : open_directory(session, path);
  if (checks != OpenChecks::kNone) compare_with_manifest(path, reader->manifest());
  return reader;
}

}  // namespace

OpenedModel::OpenedModel(Session& session, const std::string& path, bool is_adapter, OpenChecks checks)
    : session_(session),
      reader_(open_files(session, path, is_adapter, checks)),
      directory_(session, *reader_, is_adapter) {
  if (checks == OpenChecks::kNone) return;
  directory_.compare_tied_copies(*reader_, checks == OpenChecks::kAll);
  directory_.refuse_biases(*reader_);
}

void OpenedModel::check() {
  std::vector<LoadTensor> wanted;
  for (const auto& p : session_.parameters().all()) {
    if (!directory_.has(*p)) continue;
    if (quantized_ && p->is_quantized()) {
      quantized_->add_wanted(*p, wanted);
    } else {
      wanted.push_back(directory_.load_tensor(p->descriptor));
      wanted.back().descriptor.components.clear();
    }
  }
  LoadOptions options;
  options.optional = [this](const Descriptor& tensor) { return may_be_absent(tensor); };
  options.skip = [&, ignored = directory_.skip()](const std::string& name) {
    return ignored(name) || (quantized_ && quantized_->is_wanted(name));
  };
  reader_->check(wanted, options);
}

bool OpenedModel::may_be_absent(const Descriptor& tensor) const {
  const Parameter* const p = session_.parameters().find(tensor.fqn);
  return p != nullptr && p->of_objective;
}

PartSource OpenedModel::values() {
  // An adapter's files have a tied module under both names.
  const auto parts = [this, tied = tied_slots(session_.program())](const Descriptor& tensor) {
    const auto owner = tied.find(tensor.fqn);
    return directory_.parts(owner == tied.end() ? tensor : session_.parameters().find(owner->second)->descriptor);
  };
  return reader_->source(parts, true);
}

}  // namespace chassis
