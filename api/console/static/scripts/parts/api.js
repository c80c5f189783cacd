// Requests to the gateway, with the key and with its errors.
import { forgetKey, hasKey, key } from "./key.js";

let wantKey = () => {};
export const onKeyWanted = (callback) => (wantKey = callback);

export class ApiError extends Error {
  constructor(message, status, code, retryAfterS) {
    super(message);
    Object.assign(this, { status, code, retryAfterS });
  }
}

const authorization = () => (hasKey() ? { Authorization: `Bearer ${key()}` } : {});

async function refusal(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // a proxy's page, say
  }
  return new ApiError(
    error.message ?? `The gateway answered with status ${response.status}.`,
    response.status,
    error.code,
    Number(response.headers.get("retry-after")) || 0,
  );
}

// A late refusal of an earlier key says nothing about the key that was typed since.
function checkKey(error, sent) {
  if (error.status !== 401 || sent !== key()) return;
  forgetKey();
  wantKey(sent && error.message);
}

// The response, if it is a success; throws ApiError.
export async function request(path, { method = "GET", body, signal, headers = {} } = {}) {
  const sent = key();
  const json = body === undefined ? {} : { "Content-Type": "application/json" };
  const options = { method, signal, headers: { ...headers, ...json, ...authorization() } };
  if (body !== undefined) options.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The gateway does not answer.", 0);
  }
  if (response.ok) return response;
  const error = await refusal(response);
  checkKey(error, sent);
  throw error;
}

export const get = async (path, signal) => (await request(path, { signal })).json();
export const post = async (path, body, signal) => (await request(path, { method: "POST", body, signal })).json();

// Uploads a file; progress is told as a share. fetch() tells nothing of an upload.
export function upload(file, progress, signal) {
  return new Promise((resolve, reject) => {
    const form = new FormData();
    form.append("purpose", "batch");
    form.append("file", file);
    const http = new XMLHttpRequest();
    const sent = key();
    http.open("POST", "/v1/files");
    if (hasKey()) http.setRequestHeader("Authorization", `Bearer ${key()}`);
    http.upload.addEventListener("progress", (event) => progress(event.loaded / event.total));
    http.addEventListener("load", () => {
      const answer = JSON.parse(http.responseText || "{}");
      if (http.status === 200) return resolve(answer);
      const error = new ApiError(answer.error?.message ?? `status ${http.status}`, http.status, answer.error?.code);
      checkKey(error, sent);
      return reject(error);
    });
    http.addEventListener("error", () => reject(new ApiError("The upload was broken off.", 0)));
    signal.addEventListener("abort", () => http.abort());
    http.send(form);
  });
}
