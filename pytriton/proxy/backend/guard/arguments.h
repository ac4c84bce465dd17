// Arguments of the server's program that have a secret, such as the token. `ps` shows arguments to every user of the
// machine, so these come in environment variables, which it does not.
#pragma once

namespace pytriton::guard {

// Completes arguments like `--flag=@PYTRITON_SECRET_0` by the variables that they name, which it removes. Twin of
// `without_secrets` in `server/launch.py`.
void FillInSecrets(char** arguments);

}  // namespace pytriton::guard
