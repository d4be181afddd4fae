// Starts the program many times without its constructors; see warm_start.c.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace chassis::test {

// A process of the program that waits for requests until the test ends. Used from one thread.
class WarmProgram {
 public:
  struct Run {
    pid_t id = -1;
    int status = -1;  // its exit status, as of waitpid, can be read here
  };

  static WarmProgram& of(const std::string& program) {
    static std::map<std::string, std::unique_ptr<WarmProgram>> waiting;
    auto& one = waiting[program];
    if (!one) one.reset(new WarmProgram(program));
    return *one;
  }
  WarmProgram(const WarmProgram&) = delete;
  WarmProgram& operator=(const WarmProgram&) = delete;
  ~WarmProgram() { close(socket_); }

  // False if the program must be started: with sanitizers, and if its environment would make it restart itself.
  static bool is_possible() {
    return *CHASSIS_TEST_WARM_START != '\0' && std::getenv("OMP_WAIT_POLICY") != nullptr &&
           std::getenv("LD_PRELOAD") == nullptr;
  }

  // id < 0: the program could not be started.
  Run start(const std::string& directory, const std::string& output, const std::vector<char*>& arguments,
            const std::vector<char*>& environment) {
    std::string request;
    const auto add = [&](const char* word) { request.append(word, std::strlen(word) + 1); };
    add(directory.c_str());
    add(output.c_str());
    add(std::to_string(arguments.size() - 1).c_str());  // without the NULL
    for (const auto* words : {&arguments, &environment})
      for (const char* word : *words)
        if (word != nullptr) add(word);
    int status[2];
    if (pipe2(status, O_CLOEXEC) != 0) return {};
    iovec part{request.data(), request.size()};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr* const control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(control), &status[1], sizeof(int));
    Run run{-1, status[0]};
    const bool sent = sendmsg(socket_, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(request.size());
    close(status[1]);
    int id = -1;
    if (sent && read(run.status, &id, sizeof id) == sizeof id && id > 0) {
      run.id = id;
    } else {
      close(run.status);
      run.status = -1;
    }
    return run;
  }

 private:
  explicit WarmProgram(const std::string& program) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) return;
    socket_ = sockets[0];
    const std::string name = "CHASSIS_TEST_WARM_SOCKET=" + std::to_string(sockets[1]),
                      preloaded = std::string("LD_PRELOAD=") + CHASSIS_TEST_WARM_START;
    std::vector<char*> arguments = {const_cast<char*>(program.c_str()), nullptr}, environment;
    for (char** variable = environ; *variable; ++variable) environment.push_back(*variable);
    environment.push_back(const_cast<char*>(name.c_str()));
    environment.push_back(const_cast<char*>(preloaded.c_str()));
    environment.push_back(nullptr);
    if (fork() == 0) {
      fcntl(sockets[1], F_SETFD, 0);
      execve(arguments[0], arguments.data(), environment.data());
      _exit(127);
    }
    close(sockets[1]);
  }

  int socket_ = -1;
};

}  // namespace chassis::test
