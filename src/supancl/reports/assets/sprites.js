// Arrays and thumbnails that Python packed into the page.
"use strict";

// The typed array of {dtype, base64}, as packed by reports/sprites.py.
function unpackArray(packed) {
  const kinds = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, uint32: Uint32Array };
  const text = atob(packed.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new kinds[packed.dtype](bytes.buffer);
}

// Thumbnails on sheets of equal tiles. A sheet is decoded when one of its images is first shown.
class Sprites {
  constructor(data) {
    this.side = data.side;
    this.columns = data.columns;
    this.contents = data.sheets;
    this.sizes = unpackArray(data.sizes);
    this.sheets = [];
    this.decoded = [];
  }

  sheet(number) {
    if (!this.sheets[number]) {
      this.sheets[number] = new Promise((resolve, reject) => {
        const image = new Image();
        image.onload = () => resolve(image);
        image.onerror = () => reject(new Error(`sheet ${number} cannot be decoded`));
        image.src = `data:image/webp;base64,${this.contents[number]}`;
      });
    }
    return this.sheets[number];
  }

  // Paint an image into a square of a context, with a frame; a sheet that is not decoded yet calls `later` when it is.
  paint(context, index, left, top, side, frame, later) {
    const perSheet = this.columns * this.columns, slot = index % perSheet, number = Math.floor(index / perSheet);
    const image = this.decoded[number];
    if (!image) { this.sheet(number).then((found) => { this.decoded[number] = found; later(); }); return; }
    const width = this.sizes[2 * index], height = this.sizes[2 * index + 1], scale = side / Math.max(width, height);
    const x = left + (side - width * scale) / 2, y = top + (side - height * scale) / 2;
    context.fillStyle = frame;
    context.fillRect(x - 2, y - 2, width * scale + 4, height * scale + 4);
    context.drawImage(image, (slot % this.columns) * this.side, Math.floor(slot / this.columns) * this.side, width, height, x, y, width * scale, height * scale);
  }

  // Draw an image on a canvas, which gets the image's size in pixels; the last call for a canvas wins.
  async draw(canvas, index) {
    canvas.dataset.image = index;
    const perSheet = this.columns * this.columns, slot = index % perSheet;
    const sheet = await this.sheet(Math.floor(index / perSheet));
    if (canvas.dataset.image !== String(index)) return;
    const width = this.sizes[2 * index], height = this.sizes[2 * index + 1];
    const left = (slot % this.columns) * this.side, top = Math.floor(slot / this.columns) * this.side;
    canvas.width = width;
    canvas.height = height;
    canvas.getContext("2d").drawImage(sheet, left, top, width, height, 0, 0, width, height);
    canvas.dataset.ready = index;
  }
}
