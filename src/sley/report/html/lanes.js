// Lanes: rows under a time axis; only the visible rows are drawn.

class Span {
  // The visible part of the time; figures that share a span scroll together.
  constructor() {
    this.watchers = [];
    this.margins = new Map(); // for each figure the widths of its left and right labels
    this.full(1);
  }
  full(end) {
    this.end = end;
    this.set(0, end);
  }
  set(from, to) {
    const width = Math.min(Math.max(to - from, this.end * 1e-5), this.end);
    this.from = Math.min(Math.max(from, 0), this.end - width);
    this.to = this.from + width;
    this.watchers.forEach((redraw) => redraw());
  }
  zoom(factor, at = (this.from + this.to) / 2) {
    if (!factor) return this.set(0, this.end);
    return this.set(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }
}

const AXIS = 22;

class Lanes {
  // source.labels: the rows' labels; source.heads: for some rows a text in place of all else, which
  // source.press(row) is for; source.right: labels at their right ends, optional;
  // source.draw(context, row, y, height, x): draws one row and returns the number of marks;
  // source.tip(row, time): lines of text, or null.
  constructor(host, span, rowHeight, most = 420) {
    Object.assign(this, { host, span, rowHeight, most });
    this.canvas = element("canvas");
    this.space = element("div");
    host.replaceChildren(this.canvas, this.space);
    span.watchers.push(() => this.draw());
    host.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.layout()).observe(host.parentElement);
    this.listen();
  }

  show(source) {
    this.source = source;
    this.layout();
  }

  layout() {
    if (!this.source) return;
    const rows = this.source.labels.length;
    const height = Math.min(AXIS + rows * this.rowHeight + 2, this.most);
    this.host.style.height = `${height + 2}px`;
    this.space.style.height = `${Math.max(AXIS + rows * this.rowHeight + 2 - height, 0)}px`;
    this.width = this.host.clientWidth;
    this.height = height;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${height}px`;
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.font = "11.5px system-ui, sans-serif";
    const widest = (texts) =>
      texts.reduce((w, text) => Math.max(w, this.context.measureText(text).width), 0);
    this.span.margins.set(this, [Math.min(widest(this.source.labels) + 14, this.width / 3),
      this.source.right ? widest(this.source.right) + 14 : 8]);
    this.span.watchers.forEach((redraw) => redraw());
  }

  head(row) {
    return this.source.heads && this.source.heads[row];
  }

  // Figures that share a span have the same margins, so that their time axes are aligned.
  get left() {
    return Math.max(...[...this.span.margins.values()].map(([left]) => left));
  }

  get right() {
    return Math.max(...[...this.span.margins.values()].map(([, right]) => right));
  }

  x(time) {
    const { from, to } = this.span;
    return this.left + ((time - from) / (to - from)) * (this.width - this.left - this.right);
  }

  time(x) {
    const part = (x - this.left) / (this.width - this.left - this.right);
    return this.span.from + part * (this.span.to - this.span.from);
  }

  draw() {
    if (!this.source || !this.context) return;
    const { context: c, width, height, left, right, rowHeight } = this;
    c.clearRect(0, 0, width, height);
    const marks = this.drawGrid(c);
    c.textBaseline = "middle";
    const top = this.host.scrollTop;
    const first = Math.floor(top / rowHeight);
    const last = Math.min(this.source.labels.length, Math.ceil((top + height - AXIS) / rowHeight));
    let drawn = 0;
    c.save();
    c.beginPath();
    c.rect(left, AXIS, width - left - right, height - AXIS);
    c.clip();
    for (let row = first; row < last; row++) {
      const y = AXIS + row * rowHeight - top;
      if (this.head(row)) continue;
      drawn += this.source.draw(c, row, y + 1, rowHeight - 2, (t) => this.x(t));
    }
    c.restore();
    c.save();
    c.beginPath();
    c.rect(0, AXIS, width, height - AXIS);
    c.clip();
    c.fillStyle = style("--soft");
    for (let row = first; row < last; row++) {
      const y = AXIS + (row + 0.5) * rowHeight - top;
      c.textAlign = "left";
      if (this.head(row)) {
        c.fillStyle = style("--grid");
        c.fillRect(0, y - rowHeight / 2, width, rowHeight);
        c.fillStyle = style("--ink");
        c.fillText(this.head(row), 6, y);
        c.fillStyle = style("--soft");
        continue;
      }
      c.fillText(this.source.labels[row], 6, y, left - 10);
      if (!this.source.right) continue;
      c.textAlign = "right";
      c.fillText(this.source.right[row], width - 6, y);
    }
    c.restore();
    this.host.dataset.marks = drawn;
    this.host.dataset.ticks = marks;
  }

  drawGrid(c) {
    const { from, to } = this.span;
    const { step, values } = ticks(from, to, (this.width - this.left) / 110);
    c.strokeStyle = style("--grid");
    c.fillStyle = style("--soft");
    c.textAlign = "center";
    c.textBaseline = "middle";
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    for (const value of values) {
      const x = this.x(value);
      c.beginPath();
      c.moveTo(x, AXIS);
      c.lineTo(x, this.height);
      c.stroke();
      c.fillText(value.toFixed(digits), Math.min(x, this.width - 24), AXIS / 2);
    }
    c.textAlign = "left";
    c.fillText("us", 6, AXIS / 2);
    return values.length;
  }

  listen() {
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const rowAt = (y) => Math.floor((y - AXIS + this.host.scrollTop) / this.rowHeight);
    let grip = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      grip = { x: event.clientX, from: this.span.from, to: this.span.to };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const pressed = grip && Math.abs(event.clientX - grip.x) < 3;
      grip = null;
      const [, y] = at(event);
      if (pressed && y > AXIS && this.head(rowAt(y))) this.source.press(rowAt(y));
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (grip) {
        const inner = this.width - this.left - this.right;
        const by = ((grip.x - event.clientX) / inner) * (grip.to - grip.from);
        this.span.set(grip.from + by, grip.to + by);
        return showTip(event, null);
      }
      const [x, y] = at(event);
      const row = rowAt(y);
      const inside = y > AXIS && row < this.source.labels.length;
      return showTip(event, inside ? this.source.tip(row, this.time(x)) : null);
    });
    this.canvas.addEventListener("pointerleave", (event) => showTip(event, null));
    this.canvas.addEventListener("dblclick", () => this.span.zoom(0));
    this.host.addEventListener("wheel", (event) => {
      const inner = this.span.to - this.span.from;
      if (event.ctrlKey || event.metaKey) {
        this.span.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(at(event)[0]));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = (event.deltaX || event.deltaY) / this.width * inner;
        this.span.set(this.span.from + by, this.span.to + by);
      } else return;
      event.preventDefault();
    }, { passive: false });
    this.host.addEventListener("keydown", (event) => {
      const by = (this.span.to - this.span.from) / 8;
      if (event.key === "+" || event.key === "=") this.span.zoom(0.7);
      else if (event.key === "-") this.span.zoom(1.4);
      else if (event.key === "0") this.span.zoom(0);
      else if (event.key === "ArrowLeft") this.span.set(this.span.from - by, this.span.to - by);
      else if (event.key === "ArrowRight") this.span.set(this.span.from + by, this.span.to + by);
      else return;
      event.preventDefault();
    });
  }
}
