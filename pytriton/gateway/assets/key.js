// The API key of this browser tab, which is sent with each request of the page.
"use strict";

const apiKey = {
  get: () => sessionStorage.getItem("pytriton-key") || "",
  set: (key) => sessionStorage.setItem("pytriton-key", key),
  headers: () => (apiKey.get() ? { authorization: `Bearer ${apiKey.get()}` } : {}),
};

// Calls `load`; while it returns a response with status 401, asks for a key and calls it again.
async function withKey(load) {
  const form = document.getElementById("key-form");
  const response = await load();
  form.hidden = response.status !== 401;
  if (form.hidden) return;
  document.getElementById("key-error").textContent = apiKey.get() ? "The API key is not valid." : "";
  form.onsubmit = (event) => {
    event.preventDefault();
    apiKey.set(document.getElementById("key").value.trim());
    withKey(load);
  };
}
