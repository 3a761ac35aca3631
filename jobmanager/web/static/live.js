// Keeps the page up to date: the server tells that something has changed, the page is fetched again, and what differs
// is put into the elements with data-live. Nodes stay, so focus, selection and scroll position do too.

const note = document.getElementById("connection");
const address = document.body.dataset.events;
const RETRY = 5000;
let source = null;
let isFetching = false;
let isStale = false;

function sayLost(isLost) {
  if (note.hidden === !isLost) return;
  note.hidden = !isLost;
  note.textContent = isLost ? "The connection is lost: what is shown may be old. Trying again …" : "";
}

function connect() {
  if (source || document.hidden) return;
  source = new EventSource(address);
  source.addEventListener("open", () => sayLost(false));
  source.addEventListener("change", refresh);
  source.addEventListener("error", () => {
    sayLost(true);
    if (source && source.readyState === EventSource.CLOSED) {
      disconnect();
      setTimeout(connect, RETRY);
    }
  });
}

function disconnect() {
  if (source) source.close();
  source = null;
}

async function refresh() {
  isStale = true;
  if (isFetching) return;
  isFetching = true;
  while (isStale) {
    isStale = false;
    const began = performance.now();
    await update().then(() => sayLost(false), () => sayLost(true));
    // A page that takes long to make shall not keep the server busy.
    await new Promise((resume) => setTimeout(resume, Math.max(1000, 5 * (performance.now() - began))));
  }
  isFetching = false;
}

async function update() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  // It was removed: that is said by the page itself.
  if (answer.status === 404) location.reload();
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const printed = document.querySelectorAll("pre.live");
  const left = new Set([...printed].filter((one) => one.scrollHeight - one.scrollTop - one.clientHeight > 5));
  for (const element of document.querySelectorAll("[data-live]")) {
    const replacement = fresh.getElementById(element.id);
    if (replacement) sync(element, replacement);
  }
  showEnds(left);
  document.title = fresh.title;
}

// Of what is printed the end is in sight, unless the reader has left it.
function showEnds(left) {
  for (const one of document.querySelectorAll("pre.live")) if (!left.has(one)) one.scrollTop = one.scrollHeight;
}

function sync(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = fresh.nodeValue;
    return;
  }
  syncAttributes(old, fresh);
  if (!old.hasAttribute("data-drawn")) syncChildren(old, fresh);
}

function syncAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    // What the reader has opened stays open.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function syncChildren(old, fresh) {
  const keyOf = (node) => (node && node.dataset ? node.dataset.key : undefined);
  const children = [...fresh.childNodes];
  const kept = new Set(children.map(keyOf));
  const known = new Map([...old.children].filter(keyOf).map((child) => [keyOf(child), child]));
  for (const [key, child] of known) if (!kept.has(key)) child.remove();
  let at = old.firstChild;
  for (const child of children) {
    const match = keyOf(child) ? known.get(keyOf(child)) : keyOf(at) ? undefined : at;
    if (!match) {
      old.insertBefore(child, at);
    } else if (match === at) {
      at = at.nextSibling;
      sync(match, child);
    } else {
      old.insertBefore(match, at);
      sync(match, child);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

showEnds(new Set());
if (address) {
  // Browsers keep few connections to one server: a page that nobody looks at needs none.
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  connect();
}
