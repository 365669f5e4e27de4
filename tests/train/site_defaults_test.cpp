// Defaults that a machine and a user have for all runs.
#include "model/train/config/site_defaults.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "tests/model/temp_dir.h"
#include "tests/train/config_text.h"

namespace site_defaults_test {

using namespace zs;
using namespace zs::test;
using Catch::Contains;

namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

Values values_of(const std::vector<SiteDefault>& defaults) {
  Values values;
  for (const SiteDefault& one : defaults) values.emplace_back(one.key, one.value);
  return values;
}

std::vector<Error> problems_of_site(const std::string& text) {
  try {
    parse_site_defaults(text, "/etc/zshard.toml");
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

/// A variable of the environment while it lives; nothing: it is not set.
class Variable {
 public:
  Variable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { set(before_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value)
      ::setenv(name_, value->c_str(), 1);
    else
      ::unsetenv(name_);
  }

  const char* name_;
  std::optional<std::string> before_;
};

Config config_of(const std::string& text, const Overrides& overrides, const std::vector<SiteDefault>& site) {
  return parse_config(text, "folder/small.toml", overrides, ConfigFor::training, site);
}

}  // namespace

TEST_CASE("a file of the machine holds keys of the machine, and says where each is") {
  const auto defaults = parse_site_defaults("device = \"cpu\"\n[comm]\ntimeout_s = 60\n", "/etc/zshard.toml");
  CHECK(values_of(defaults) == Values{{"comm.timeout_s", "60.0"}, {"device", "\"cpu\""}});
  CHECK(defaults[0].where == "/etc/zshard.toml:3");
  CHECK(parse_site_defaults("[cuda]\nlibraries = \"/opt/nccl/lib:/opt/cuda/lib\"\n", "s").size() == 1);
}

TEST_CASE("what changes a result, is unknown, ill-typed or relative is refused there") {
  const auto problems =
      problems_of_site("[train]\nlr = 1e-3\nlrr = 3\n[comm]\ntimeout_s = \"soon\"\n[cuda]\nlibraries = \"/a:lib\"");
  REQUIRE(problems.size() == 4);
  CHECK(problems[0].what_happened() == "comm.timeout_s is a string");
  CHECK(problems[0].where() == "/etc/zshard.toml:5");
  CHECK(problems[1].what_happened() == "unknown key train.lrr");
  CHECK(problems[2].what_happened() == "cuda.libraries has a folder that does not begin with /");
  CHECK(problems[3].what_happened() == "train.lr is no key of a machine");
  CHECK(problems[3].where() == "/etc/zshard.toml:2");
  CHECK_THAT(problems[3].what_to_do(), Contains("the run's own file"));
}

TEST_CASE("a run's own file and --set go before the user's file, and that before the machine's") {
  const std::vector<SiteDefault> site = {{"comm.timeout_s", "60.0", "/etc/zshard.toml:2"},
                                         {"watchdog.step_s", "7.0", "/etc/zshard.toml:4"},
                                         {"train.time_limit", "3600.0", "/etc/zshard.toml:6"},
                                         {"offload.device_mib", "512", "/etc/zshard.toml:8"},
                                         {"comm.timeout_s", "90.0", "/home/zshard.toml:1"}};
  const Config config = config_of(kSmall + "[watchdog]\nstep_s = 30\n", {"train.time_limit=0:01:00"}, site);
  CHECK(config.comm.timeout_s == 90);
  CHECK(config.watchdog.step_s == 30);
  CHECK(config.train.time_limit.value == 60);
  CHECK(config.offload.device_mib == 512);
  CHECK_FALSE(config.given.contains("comm.timeout_s"));
  CHECK(config.given.contains("watchdog.step_s"));
  CHECK(site_note(config) ==
        "defaults of /home/zshard.toml:1 comm.timeout_s = 90.0, /etc/zshard.toml:8 offload.device_mib = 512");
  CHECK(site_note(config_of(kSmall, {}, {})).empty());
  CHECK(config_of(to_toml(config), {}, {{"comm.timeout_s", "5.0", "x:1"}}).comm.timeout_s == 90);
}

TEST_CASE("a default that does not go with the run is named by its own place") {
  try {
    config_of(kSmall, {"model.preset=mixtral-8x7B"}, {{"device", "\"cuda\"", "/etc/zshard.toml:1"}});
    FAIL("a mixture of experts has no kernels for GPUs");
  } catch (const ConfigError& error) {
    CHECK_THAT(error.what_happened(), Contains("device = \"cuda\" does not go with"));
    CHECK(error.where() == "/etc/zshard.toml:1");
  }
}

TEST_CASE("files are looked for where the system and the user have them, or in the one that is named") {
  const TempDir folder;
  const Variable only("ZSHARD_SITE_CONFIG", std::nullopt), home("XDG_CONFIG_HOME", folder.path());
  const bool is_machines = std::filesystem::exists("/etc/zshard.toml");
  CHECK((is_machines || site_defaults().empty()));
  const std::string path = folder.write("zshard.toml", "[comm]\ntimeout_s = 11\n");
  REQUIRE_FALSE(site_defaults().empty());
  CHECK(site_defaults().back().where == path + ":2");
  const std::string other = folder.write("other.toml", "[comm]\ntimeout_s = 12\n");
  {
    const Variable named("ZSHARD_SITE_CONFIG", other);
    CHECK(values_of(site_defaults()) == Values{{"comm.timeout_s", "12.0"}});
  }
  {
    const Variable none("ZSHARD_SITE_CONFIG", "");
    CHECK(site_defaults().empty());
  }
  const Variable missing("ZSHARD_SITE_CONFIG", folder / "none.toml");
  CHECK_THROWS_WITH(site_defaults(), Contains("ZSHARD_SITE_CONFIG"));
}

}  // namespace site_defaults_test
