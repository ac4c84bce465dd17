// Arguments of the server's program that contain a secret, such as the token. `ps` shows arguments to every user of the
// machine, but not environment variables, in which these are passed.
#pragma once

namespace pytriton::guard {

// Replaces the names of environment variables in arguments such as `--flag=@PYTRITON_SECRET_0` by their values, and
// removes the variables. Counterpart of `without_secrets` in `server/launch.py`.
void FillInSecrets(char** arguments);

}  // namespace pytriton::guard
