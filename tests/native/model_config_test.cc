// The configuration of a model whose batches the backend builds, as the guard shows it to clients.
#include "guard/model_config.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

const std::string kParameter = R"("pytriton_builds_batches":{"string_value":"yes"})";
const std::string kBatcher =
    R"("dynamic_batching":{"preferred_batch_size":[16],"max_queue_delay_microseconds":0,"preserve_ordering":false,)"
    R"("priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}},)";

std::string Config(const std::string& parameters, const std::string& batcher = "") {
  return R"({"name":"m","max_batch_size":16,)" + batcher + R"("instance_group":[{"count":1}],"parameters":{)" +
         parameters + "}}";
}

void Check(const std::string& parameters, const std::string& shown) {
  if (pytriton::guard::WithBatcher(Config(parameters)) == Config(shown, kBatcher)) return;
  std::fprintf(stderr, "not shown as is expected: %s\n", parameters.c_str());
  std::exit(1);
}

}  // namespace

int main() {
  const std::string a = R"("a":{"string_value":"1"})";
  const std::string b = R"("b":{"string_value":"\"instance_group\":,\"pytriton_builds_batches\":"})";
  Check(kParameter, "");
  Check(kParameter + "," + a, a);
  Check(a + "," + kParameter, a);
  Check(a + "," + kParameter + "," + b, a + "," + b);
  Check(b + "," + kParameter + "," + a, b + "," + a);
  for (const std::string& config : {Config(a), Config(a, kBatcher), std::string("{}"), "{" + kParameter + "}"}) {
    if (pytriton::guard::WithBatcher(config).has_value()) return 1;
  }
  std::printf("passed\n");
}
