// The supervisor of worker processes and a worker, which is this program in another role:
// `worker_supervisor_test BEHAVIOR`, or `--list`. Files in the current folder say what the worker does.
#include "python_models/worker_supervisor.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "data_path.h"
#include "peer_codecs.h"

namespace {

using namespace std::chrono_literals;

using data_path::Contains;
using pytriton::ChildProcess;
using pytriton::Command;
using pytriton::CommandError;
using pytriton::CommandMessage;
using pytriton::MessageReader;
using pytriton::MessageWriter;
using pytriton::ProcessError;
using pytriton::ProcessSpec;
using pytriton::WorkerSupervisor;

constexpr int kControlSocket = 3;

// The process.

void Take(char* data, size_t size) {
  while (size > 0) {
    const ssize_t received = read(kControlSocket, data, size);
    if (received <= 0) _exit(1);
    data += received;
    size -= received;
  }
}

void Reply(const std::string& error, const std::string& config, bool admits) {
  MessageWriter writer;
  writer.Text(error);
  writer.Text(error.empty() ? "" : "in line 1");
  writer.Text(config);
  int64_t size = writer.head_size();
  std::string frame(8 + size, '\0');
  writer.CopyTo(frame.data() + 8);
  if (admits) {
    pytriton::AdmissionMessage admission;
    admission.socket = std::to_string(getpid());
    MessageWriter data;
    Encode(admission, &data);
    frame.resize(8 + size + data.head_size());
    data.CopyTo(frame.data() + 8 + size);
    size += data.head_size();
  }
  std::memcpy(frame.data(), &size, 8);
  if (write(kControlSocket, frame.data(), frame.size()) != static_cast<ssize_t>(frame.size())) _exit(1);
}

bool IsSet(const char* what) { return access(what, F_OK) == 0; }
void Tell(const std::string& what) { std::ofstream(what).close(); }

int Host() {
  while (true) {
    int64_t size;
    Take(reinterpret_cast<char*>(&size), sizeof(size));
    std::string frame(size, '\0');
    Take(frame.data(), frame.size());
    MessageReader reader(frame.data(), size);
    switch (static_cast<Command>(reader.Word())) {
      case Command::kCompleteConfig:
        Reply("", "completed", false);
        break;
      case Command::kLoad:
        if (IsSet("exit")) _exit(3);
        while (IsSet("hang")) usleep(1000);
        Reply(IsSet("fail") ? "ValueError: no weights" : "", IsSet("ask") ? pytriton::kHasReadinessCheck : "", false);
        break;
      case Command::kCheckReady:
        Tell("asked");
        Reply(IsSet("unready") ? "not yet" : "", "", false);
        break;
      case Command::kIssueTicket:
        Reply("", "", true);
        break;
      case Command::kStop:
        while (IsSet("linger")) usleep(1000);
        Tell("stopped");
        Reply("", "", false);
        return 0;
    }
  }
}

// The tests.

std::string Self() { return std::filesystem::read_symlink("/proc/self/exe"); }

ProcessSpec HostCommand() {
  const std::string launcher = std::filesystem::path(Self()).parent_path() / "pytriton-launch";
  std::vector<std::string> environment;
  for (char** each = environ; *each != nullptr; ++each) environment.emplace_back(*each);
  return {{launcher, Self(), "host"}, environment};
}

CommandMessage Load() {
  CommandMessage command;
  command.command = Command::kLoad;
  command.model = "model";
  return command;
}

pid_t Admitted(WorkerSupervisor* supervisor, std::chrono::milliseconds timeout = 20s) {
  return std::stoi(supervisor->IssueTicket(WorkerSupervisor::Clock::now() + timeout, [] { return true; }).socket);
}

template <typename Error>
std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void WaitFor(const std::function<bool()>& condition) {
  const auto deadline = WorkerSupervisor::Clock::now() + 20s;
  while (!condition()) {
    CHECK(WorkerSupervisor::Clock::now() < deadline);
    std::this_thread::sleep_for(1ms);
  }
}

bool Gone(pid_t process) { return kill(process, 0) != 0; }

void OneProcessHandlesAllCommands() {
  pid_t process;
  {
    WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
    CommandMessage command = Load();
    command.command = Command::kCompleteConfig;
    CHECK(supervisor.Complete(command) == "completed");
    supervisor.Load(Load(), [] { std::abort(); });
    process = Admitted(&supervisor);
    CHECK(Admitted(&supervisor) == process);
  }
  CHECK(IsSet("stopped"));
  CHECK(Gone(process));
}

void AModelIsAskedWhetherItIsReadyIfItWantsToBe() {
  {
    WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
    supervisor.Load(Load(), [] { std::abort(); });
    supervisor.CheckReady();
    CHECK(!IsSet("asked"));
  }
  Tell("ask");
  WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
  supervisor.Load(Load(), [] {});
  supervisor.CheckReady();
  CHECK(IsSet("asked"));
  Tell("unready");
  CHECK(ErrorOf<CommandError>([&] { supervisor.CheckReady(); }) == "not yet");
  Tell("hang");  // when it is loaded again
  kill(Admitted(&supervisor), SIGKILL);
  WaitFor([&] { return Contains(ErrorOf<std::exception>([&] { supervisor.CheckReady(); }), "is being restarted"); });
  std::filesystem::remove("hang");
}

void AProcessThatEndsIsStartedAgain() {
  std::atomic<int> restart_counter{0};
  WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
  supervisor.Load(Load(), [&] { ++restart_counter; });
  for (int i = 1; i < 4; ++i) {
    const pid_t process = Admitted(&supervisor);
    kill(process, SIGKILL);
    WaitFor([&] { return restart_counter == i; });
    CHECK(Admitted(&supervisor) != process);
  }
  const std::string log = fake_triton::TakeLog();
  CHECK(Contains(log, "was killed by SIGKILL; restarting it\n"));
  CHECK(Contains(log, "was killed by SIGKILL; restarting it in 0.1 s\n"));
  CHECK(Contains(log, "was killed by SIGKILL; restarting it in 0.2 s\n"));
}

void AModelThatDoesNotLoadIsAnError() {
  Tell("fail");
  WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
  CHECK(ErrorOf<CommandError>([&] { supervisor.Load(Load(), [] { std::abort(); }); }) == "ValueError: no weights");
}

void AProcessThatEndsAtItsStartIsAnError() {
  Tell("exit");
  WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
  const std::string error = ErrorOf<ProcessError>([&] { supervisor.Load(Load(), [] { std::abort(); }); });
  CHECK(error == "its worker process ended with exit status 3");
}

void AProgramThatIsMissingIsAnError() {
  WorkerSupervisor supervisor({{"/no/launcher", "/no/program"}, {}}, "model", std::nullopt);
  const std::string error = ErrorOf<ProcessError>([&] { supervisor.Load(Load(), [] { std::abort(); }); });
  CHECK(error == "cannot start /no/program by /no/launcher: No such file or directory");
}

void AProcessThatCannotHaveItsFilesIsAnError() {
  rlimit limit = {};
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit few = {64, limit.rlim_max};  // none is left for copies of its files
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::string error;
  {
    WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
    error = ErrorOf<ProcessError>([&] { supervisor.Load(Load(), [] { std::abort(); }); });
  }
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(Contains(error, "cannot start " + Self() + " by ") && Contains(error, "/pytriton-launch: "));
  CHECK(Contains(error, std::strerror(EINVAL)) || Contains(error, std::strerror(EMFILE)));
}

void AStartThatTakesTooLongIsEnded() {
  Tell("hang");
  WorkerSupervisor supervisor(HostCommand(), "model", 1s);
  const std::string error = ErrorOf<ProcessError>([&] { supervisor.Load(Load(), [] { std::abort(); }); });
  CHECK(error == "its worker process has not replied for 1 s and was killed");
}

void WaitingRequestsFailWithTheReasonOfAFailedStart() {
  WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
  supervisor.Load(Load(), [] {});
  Tell("fail");
  kill(Admitted(&supervisor), SIGKILL);
  WaitFor([&] { return ErrorOf<ProcessError>([&] { Admitted(&supervisor); }) == "ValueError: no weights"; });
  CHECK(ErrorOf<ProcessError>([&] { Admitted(&supervisor); }) == "ValueError: no weights");
  unlink("fail");
  WaitFor([&] { return ErrorOf<ProcessError>([&] { Admitted(&supervisor); }).empty(); });
}

void NobodyWaitsForEver() {
  std::atomic<bool> restarted{false};
  WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
  supervisor.Load(Load(), [&] { restarted = true; });
  Tell("hang");
  kill(Admitted(&supervisor), SIGKILL);
  WaitFor([&] { return restarted.load(); });
  const auto wait = [&](std::chrono::milliseconds timeout, bool wanted) {
    return ErrorOf<ProcessError>(
        [&] { supervisor.IssueTicket(WorkerSupervisor::Clock::now() + timeout, [&] { return wanted; }); });
  };
  CHECK(wait(100ms, true) == "its worker process is still being restarted");
  CHECK(wait(1000s, false) == "its worker process is still being restarted");
  unlink("hang");
  CHECK(Admitted(&supervisor) > 0);
}

void ASupervisorEndsWhileItsProcessIsBeingStartedAgain() {
  std::atomic<bool> restarted{false};
  WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
  supervisor.Load(Load(), [&] { restarted = true; });
  Tell("hang");
  kill(Admitted(&supervisor), SIGKILL);
  WaitFor([&] { return restarted.load(); });
}

void ASupervisorEndsWhileItPauses() {
  std::atomic<int> restart_counter{0};
  WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
  supervisor.Load(Load(), [&] { ++restart_counter; });
  Tell("exit");
  kill(Admitted(&supervisor), SIGKILL);
  WaitFor([&] { return restart_counter > 3; });
}

void ProcessesAreKilledUnderLoad() {
  std::atomic<bool> done{false};
  std::atomic<int> admitted{0};
  WorkerSupervisor supervisor(HostCommand(), "model", std::nullopt);
  supervisor.Load(Load(), [] {});
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!done) admitted += Admitted(&supervisor) > 0;
    });
  }
  for (int i = 0; i < 4; ++i) {
    const int before = admitted;
    WaitFor([&] { return admitted > before + 10; });
    kill(Admitted(&supervisor), SIGKILL);
  }
  const int before = admitted;
  WaitFor([&] { return admitted > before + 10; });
  done = true;
  for (std::thread& thread : threads) thread.join();
}

const data_path::Behaviors kBehaviors = {
    {"one_process_handles_all_commands", OneProcessHandlesAllCommands},
    {"a_model_is_asked_whether_it_is_ready_if_it_wants_to_be", AModelIsAskedWhetherItIsReadyIfItWantsToBe},
    {"a_process_that_ends_is_started_again", AProcessThatEndsIsStartedAgain},
    {"a_model_that_does_not_load_is_an_error", AModelThatDoesNotLoadIsAnError},
    {"a_process_that_ends_at_its_start_is_an_error", AProcessThatEndsAtItsStartIsAnError},
    {"a_program_that_is_missing_is_an_error", AProgramThatIsMissingIsAnError},
    {"a_process_that_cannot_have_its_files_is_an_error", AProcessThatCannotHaveItsFilesIsAnError},
    {"a_start_that_takes_too_long_is_ended", AStartThatTakesTooLongIsEnded},
    {"waiting_requests_fail_with_the_reason_of_a_failed_start", WaitingRequestsFailWithTheReasonOfAFailedStart},
    {"nobody_waits_for_ever", NobodyWaitsForEver},
    {"a_supervisor_ends_while_its_process_is_being_started_again", ASupervisorEndsWhileItsProcessIsBeingStartedAgain},
    {"a_supervisor_ends_while_it_pauses", ASupervisorEndsWhileItPauses},
    {"processes_are_killed_under_load", ProcessesAreKilledUnderLoad},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "host") return Host();
  return data_path::Run(kBehaviors, argc, argv);
}
