// Live updates, local times and copy buttons. Pages are complete without this script; a reload then shows changes.

const RECONNECT_DELAY_MS = 10_000; // after the server has refused a stream
const statusLine = document.getElementById("status");
const pendingRegions = new Map(); // by id: the newest version of each region that is not yet shown
let stream = null;
let isPolling = false; // this browser has its maximum number of streams, so each stream ends after one event
let serverOffsetMs = statusLine ? Date.parse(statusLine.dataset.now) - Date.now() : 0; // server time minus local time

// -- Times: local time in the text; local time and UTC in the title.
// The format is that of logs and commands: 2030-01-31 17:04:05.
const local = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const UNITS = [["d", 86_400], ["h", 3600], ["m", 60], ["s", 1]];

// The two largest units, of which zeros are left out: 3m 20s.
function formatSpan(seconds) {
  const parts = UNITS.map(([unit, size], index) => {
    const remaining = index ? seconds % UNITS[index - 1][1] : seconds;
    return [Math.floor(remaining / size), unit];
  });
  const first = parts.findIndex(([number]) => number);
  const shown = parts.slice(Math.max(first, 0), first + 2).filter(([number]) => number);
  return shown.map((part) => part.join("")).join(" ") || "0s";
}

function formatDistance(date) {
  const seconds = (Date.now() + serverOffsetMs - date) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${formatSpan(seconds)} ago` : `in ${formatSpan(-seconds)}`;
}

function updateTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const date = new Date(time.dateTime);
    if (Number.isNaN(+date)) continue; // the text of a reason may contain something like a time
    const text = { clock, day, local }[time.dataset.as]?.format(date) ?? formatDistance(date);
    if (time.textContent !== text && !isInUse(time)) time.textContent = text;
    const title = `${local.format(date)} (${time.dateTime.slice(0, 19).replace("T", " ")} UTC)`;
    if (time.title !== title) time.title = title;
  }
}

// -- Regions: changed parts are replaced. Elements with ids are compared one by one, so that equal ones stay.
function patch(old, fresh) {
  if (old.isEqualNode(fresh)) return old;
  if (old.nodeName !== fresh.nodeName || !fresh.querySelector?.("[id]")) {
    fresh.animate?.([{ backgroundColor: "var(--raised)" }, {}], 1200);
    return fresh;
  }
  const key = (node, index) => node.id || `${node.nodeName} ${index}`;
  const oldChildren = new Map([...old.childNodes].map((node, index) => [key(node, index), node]));
  const children = [...fresh.childNodes].map((node, index) => {
    const oldChild = oldChildren.get(key(node, index));
    return oldChild ? patch(oldChild, node) : node;
  });
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) old.setAttribute(name, value);
  old.replaceChildren(...children);
  return old;
}

// Details that the visitor has opened stay open.
function keepOpenDetails(old, fresh) {
  const isOpen = ({ id }) => old.querySelector(`[id="${CSS.escape(id)}"] > details`)?.open;
  fresh.querySelectorAll("details").forEach((details) => (details.open = isOpen(details.parentNode) ?? details.open));
}

function isInUse(element) {
  const selection = getSelection();
  const isSelected = selection !== null && !selection.isCollapsed && selection.containsNode(element, true);
  return isSelected || element.matches(":hover, :focus-within, :has(input:checked)");
}

// A region in use does not change until the visitor leaves it.
function showPendingRegions() {
  for (const [id, fresh] of pendingRegions) {
    const old = document.getElementById(id);
    if (old && isInUse(old)) continue;
    pendingRegions.delete(id);
    if (!old) continue;
    updateTimes(old);
    updateTimes(fresh);
    keepOpenDetails(old, fresh);
    const patched = patch(old, fresh);
    if (patched !== old) old.replaceWith(patched);
  }
  if (pendingRegions.size) showStatus("paused", "Paused while you use this part");
  else showStatus("live", "Live");
}

function showStatus(state, text) {
  if (!statusLine) return;
  statusLine.className = state;
  const label = statusLine.querySelector("b");
  if (label.textContent !== text) label.textContent = text;
}

// -- The stream: the same URL, requested as an event stream. A hidden tab has none.
function connect() {
  if (stream !== null || document.hidden || !document.querySelector("[data-region]")) return;
  stream = new EventSource(location.href);
  stream.onopen = () => (isPolling = false);
  stream.addEventListener("poll", () => (isPolling = true));
  stream.onmessage = (event) => {
    const fresh = new DOMParser().parseFromString(event.data, "text/html");
    for (const region of fresh.querySelectorAll("[data-region]")) pendingRegions.set(region.id, region);
    showPendingRegions();
  };
  stream.addEventListener("now", (event) => {
    serverOffsetMs = Date.parse(event.data) - Date.now();
    statusLine?.querySelector("time").setAttribute("datetime", event.data);
    showPendingRegions();
  });
  stream.addEventListener("outage", (event) => showStatus("outage", event.data));
  stream.onerror = async () => {
    if (isPolling) return void (isPolling = false);
    if (stream.readyState !== EventSource.CLOSED) return showStatus("outage", "Not connected"); // it reconnects by itself
    disconnect();
    setTimeout(connect, RECONNECT_DELAY_MS);
    const page = await fetch(location.href, { method: "HEAD", redirect: "manual" }).catch(() => null);
    if ([401, 403].includes(page?.status)) location.reload(); // signed out, maybe in another tab: show the page for that
    if (page?.status === 404) showStatus("outage", "This job no longer exists"); // its last state stays readable
  };
}

function disconnect() {
  showStatus("outage", "Not connected");
  stream?.close();
  stream = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
addEventListener("pagehide", disconnect);
addEventListener("pageshow", (event) => event.persisted && connect());
setInterval(() => pendingRegions.size && statusLine?.className !== "outage" && showPendingRegions(), 300);
setInterval(() => document.hidden || updateTimes(document), 1000);

// -- Copy buttons.
for (const text of document.querySelectorAll(".copy > pre")) {
  const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  });
  if (navigator.clipboard) text.after(button);
}

updateTimes(document);
connect();
