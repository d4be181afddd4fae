// The reader process writes one JSON object per line: {"file"} before it reads a file, {"tensor", …}, {"metadata"}, and
// at the end {"done"} or {"error"}.
#include "host/checkpoint/isolated_scan.hpp"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/json.hpp"
#include "host/plugin/status.hpp"

namespace chassis {
namespace {

constexpr uint64_t kMaxAddedMemoryBytes = uint64_t{4} << 30;  // above what the process uses when it starts to read
constexpr rlim_t kMaxSeconds = 600;
constexpr size_t kMaxLineBytes = size_t{1} << 20;

// ---- The parent process

std::string exit_text(int status) {
  if (WIFEXITED(status)) return "exited with code " + std::to_string(WEXITSTATUS(status));
  const char* name = ::sigabbrev_np(WTERMSIG(status));
  std::string text = std::string("was killed by SIG") + (name != nullptr ? name : "?");
  if (WTERMSIG(status) == SIGXCPU) text += " after " + std::to_string(kMaxSeconds) + " s of CPU time";
  if (WTERMSIG(status) == SIGSYS) text += ": it made a system call that a reader may not make";
  return text;
}

class ReaderProcess {
 public:
  ReaderProcess(const std::vector<std::string>& command, const SourceDirectory& directory) : directory_(directory) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      throw internal_error("cannot create a pipe: " + std::string(std::strerror(errno)));
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    const int failed = ::posix_spawn(&process_, words[0], &actions, nullptr, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    lines_.reset(::fdopen(ends[0], "r"));
    if (failed != 0) {
      process_ = 0;
      throw internal_error("cannot start " + command[0] + ": " + std::strerror(failed));
    }
  }
  ~ReaderProcess() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ReaderProcess(const ReaderProcess&) = delete;
  ReaderProcess& operator=(const ReaderProcess&) = delete;

  std::optional<FormatScan> run(std::string& reason) {
    try {
      return read_lines(reason);
    } catch (const Json::exception&) {
      throw storage_error("'" + directory_.path() + "': its reader sent a message with a wrong type or a missing key");
    }
  }

 private:
  std::optional<FormatScan> read_lines(std::string& reason) {
    std::string line;
    while (next_line(line)) {
      const Json message = parse_json(line, "message of the reader", ExitCode::kStorage);
      if (message.contains("file")) file_ = message["file"].get<std::string>();
      if (message.contains("tensor")) add(message);
      if (message.contains("metadata"))
        scan_.metadata.emplace_back(message["metadata"][0].get<std::string>(),
                                    message["metadata"][1].get<std::string>());
      if (message.contains("done")) return std::move(scan_);
      if (!message.contains("error")) continue;
      reason = message["error"].get<std::string>();
      if (message.value("other_format", false)) return std::nullopt;
      throw storage_error(reason);
    }
    int status = 0;
    ::waitpid(std::exchange(process_, 0), &status, 0);
    throw storage_error("'" + directory_.path() + "': its reader " + exit_text(status) +
                        (file_.empty() ? "" : " while reading '" + file_ + "'"))
        .hint("the file is damaged or hostile; nothing was written");
  }

  bool next_line(std::string& line) {
    line.clear();
    for (int c; (c = std::fgetc(lines_.get())) != EOF;) {
      if (c == '\n') return true;
      line += static_cast<char>(c);
      if (line.size() > kMaxLineBytes)
        throw storage_error("'" + directory_.path() + "': its reader sent a message of more than " +
                            std::to_string(kMaxLineBytes) + " bytes");
    }
    return false;
  }

  void add(const Json& message) {
    const auto numbers = [&](const char* key) { return message.at(key).get<std::vector<int64_t>>(); };
    const auto name = message["tensor"].get<std::string>();
    const std::vector<int64_t> global = numbers("global"), begin = numbers("begin"), sizes = numbers("sizes");
    const int64_t file = directory_.find(message.at("in").get<std::string>());
    if (file < 0 || global.size() != sizes.size() || begin.size() != sizes.size())
      throw storage_error("'" + directory_.path() + "': its reader sent inconsistent values for tensor '" + name + "'");
    const chassis_disk_tensor_t raw = {sizeof raw,
                                       message.at("dtype").get<uint32_t>(),
                                       str_of(name),
                                       global.data(),
                                       begin.data(),
                                       sizes.data(),
                                       static_cast<uint32_t>(sizes.size()),
                                       message.at("rank").get<uint32_t>(),
                                       message.at("bytes").get<uint64_t>()};
    scan_.add(raw, {static_cast<uint32_t>(file), message.at("at").get<uint64_t>()}, directory_);
  }

  const SourceDirectory& directory_;
  pid_t process_ = 0;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> lines_{nullptr, std::fclose};
  std::string file_;  // the file being read
  FormatScan scan_;
};

// ---- The reader process

uint64_t data_bytes_now() {
  unsigned long pages[6] = {};
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%lu %lu %lu %lu %lu %lu", &pages[0], &pages[1], &pages[2], &pages[3], &pages[4], &pages[5]) !=
      6)
    pages[5] = 0;
  std::fclose(file);
  return pages[5] * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

void limit(decltype(RLIMIT_DATA) what, rlim_t value) {
  const rlimit bound = {value, value};
  if (::setrlimit(what, &bound) != 0)
    throw internal_error("cannot limit the reader: " + std::string(std::strerror(errno)));
}

// Forbids the system calls that start programs or processes, use the network, or write files.
void refuse_system_calls() {
#if defined(__x86_64__)
  constexpr uint32_t kWrites = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
  const auto refuse = [](uint32_t call) {
    return std::array<sock_filter, 2>{sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
                                      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
  };
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 0, 1),  // x32: the same calls with other numbers
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  for (const uint32_t call :
       {SYS_execve,   SYS_execveat,  SYS_fork,  SYS_vfork,    SYS_clone,  SYS_clone3,   SYS_socket,
        SYS_connect,  SYS_ptrace,    SYS_creat, SYS_truncate, SYS_unlink, SYS_unlinkat, SYS_rename,
        SYS_renameat, SYS_renameat2, SYS_mkdir, SYS_mkdirat,  SYS_rmdir,  SYS_link,     SYS_linkat,
        SYS_symlink,  SYS_symlinkat, SYS_chmod, SYS_fchmodat})
    for (const sock_filter& step : refuse(call)) program.push_back(step);
  // open(path, flags) and openat(folder, path, flags)
  for (const auto& [call, argument] : {std::pair<uint32_t, uint32_t>{SYS_open, 1}, {SYS_openat, 2}}) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4));
    program.push_back(
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * argument)));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kWrites, 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  // On a kernel without seccomp only the resource limits apply.
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0 && errno != EINVAL)
    throw internal_error("cannot confine the reader: " + std::string(std::strerror(errno)));
#endif
}

void confine() {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, kMaxSeconds);
  limit(RLIMIT_DATA, data_bytes_now() + kMaxAddedMemoryBytes);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    throw internal_error("cannot confine the reader: " + std::string(std::strerror(errno)));
  refuse_system_calls();
}

void write_line(const Json& line) {
  const std::string text = json_line(line) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
}

// A directory that reports each file before it is read.
class ReportingDirectory {
 public:
  explicit ReportingDirectory(SourceDirectory& directory)
      : inner_(directory.table()), directory_(directory), table_(inner_) {
    table_.impl = this;
    table_.entry = [](const chassis_directory_t* d, uint32_t i, chassis_str_t* path, uint64_t* num_bytes) {
      const auto& self = *static_cast<ReportingDirectory*>(d->impl);
      return self.inner_.entry(&self.inner_, i, path, num_bytes);
    };
    table_.read = [](const chassis_directory_t* d, uint32_t i, uint64_t offset, uint64_t num_bytes, void* out) {
      auto& self = *static_cast<ReportingDirectory*>(d->impl);
      if (i != self.last_ && i < self.directory_.files().size()) {
        write_line({{"file", self.directory_.files()[i].path}});
        std::fflush(stdout);
        self.last_ = i;
      }
      return self.inner_.read(&self.inner_, i, offset, num_bytes, out);
    };
  }
  const chassis_directory_t& table() const { return table_; }

 private:
  chassis_directory_t inner_;
  SourceDirectory& directory_;
  chassis_directory_t table_;
  uint32_t last_ = UINT32_MAX;
};

std::vector<int64_t> list_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

}  // namespace

std::optional<FormatScan> scan_isolated(const std::vector<std::string>& command, const SourceDirectory& directory,
                                        std::string& reason) {
  return ReaderProcess(command, directory).run(reason);
}

int answer_scan(const FormatPlugin& format, const std::string& path) {
  try {
    SourceDirectory directory(path);
    const ReportingDirectory reporting(directory);
    confine();
    const FormatScan scan = format.scan(directory, reporting.table());
    for (const FormatScan::Found& found : scan.boxes) {
      write_line({{"tensor", found.box.name},
                  {"dtype", static_cast<uint32_t>(found.box.dtype)},
                  {"global", list_of(found.box.global_shape)},
                  {"begin", list_of(found.box.box.begin)},
                  {"sizes", list_of(found.box.box.sizes())},
                  {"rank", found.box.rank},
                  {"bytes", found.box.num_bytes()},
                  {"in", directory.files()[found.place.file].path},
                  {"at", found.place.offset}});
    }
    for (const auto& [key, value] : scan.metadata) write_line({{"metadata", {key, value}}});
    write_line({{"done", true}});
  } catch (const OtherFormat& other) {
    write_line({{"error", other.message()}, {"other_format", true}});
  } catch (const Error& error) {
    const std::string limit =
        "its reader needs more than " + std::to_string(kMaxAddedMemoryBytes >> 30) + " GiB of memory";
    write_line({{"error", error.code() == ExitCode::kOutOfMemory ? "'" + path + "': " + limit : error.what()}});
  }
  std::fflush(stdout);
  return 0;
}

}  // namespace chassis
