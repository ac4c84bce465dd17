// The API page: Swagger UI for the gateway's OpenAPI document.
"use strict";

withKey(async () => {
  const response = await fetch("openapi.json", { headers: apiKey.headers() });
  if (response.ok) {
    SwaggerUIBundle({
      spec: await response.json(),
      dom_id: "#api",
      deepLinking: true,
      tryItOutEnabled: true,
      requestInterceptor: (request) => {
        Object.assign(request.headers, apiKey.headers());
        return request;
      },
    });
  }
  return response;
});
